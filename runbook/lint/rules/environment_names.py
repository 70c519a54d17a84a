"""Judges names of environment variables: unknown, misspelt, of the past, set by runbook itself."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from runbook.lint.variables import Variable, known_variables


class VariableFault(NamedTuple):
    """A fault of a variable. `id` is without its family `env.`: `unknown-variable`. With `of_name` the place to show is
    the variable's name, not its value."""

    id: str
    message: str
    help: str | None = None
    of_name: bool = False


_CLOSED_PREFIXES = (
    "NCCL_",
    "GLOO_",
    "TORCH_NCCL_",
    "TORCH_FR_",
    "TORCH_GLOO_",
    "TORCH_DIST_",
    "TORCH_DISTRIBUTED_",
    "TORCH_ELASTIC_",
    "TORCHELASTIC_",
    "JAX_",
)
"""Families of which the table has every name, as of its date."""

_OPEN_PREFIXES = ("TORCH_", "PYTORCH_", "TP_", "XLA_PYTHON_", "CUDA_", "OMP_", "UCX_", "FI_")
"""Families with names of many other programs, or of parts that are not built in everywhere: of unknown names here, only
typing errors can be reported."""

_PLUGINS = re.compile(
    r"NCCL_(OFI|TESTS|GPUDIRECTTCPX|FASTRAK|SHIMNET|GIB|TUNER|UCX|SHARP|IBEXT|INSPECTOR|PROFILE|PROFILER|PLUGIN|EFA|"
    r"CXI|LIBFABRIC|RDMA|MSCCL|MSCCLPP|CTRAN|DYNAMIC)_"
    r"|NCCL_(NET|TUNER|PROFILER|ENV|GIN|RMA)_PLUGIN_"
    r"|NCCL_(HOME|DIR|ROOT|ROOT_DIR|PATH|VERSION|INSTALL_PATH|LIB|LIBRARY|LIBRARIES|INCLUDE|INCLUDES|INCLUDE_DIR|"
    r"INCLUDE_DIRS|LIB_DIR|LIBRARY_PATH)$"
)
"""Names that plugins of NCCL, its test programs and builds read, not NCCL itself; there is no full list of them."""

OLDEST_NCCL = (2, 14, 3)
"""The NCCL of PyTorch 2.0, the oldest PyTorch that runbook works with: a variable that was removed by then never
works."""


def name_faults(name: str, *, suggest: bool = True) -> Iterator[VariableFault]:
    """The faults of a variable's name. Without `suggest` no similar name is looked for, which takes milliseconds."""
    variable = known_variables().get(name)
    if variable is not None:
        yield from _known_name_faults(variable)
    elif name.startswith("PET_"):
        message = f"`{name}` is a flag of torchrun in disguise: it would change a launch unnoticed"
        yield _set_by_runbook_fault(message, "leave it out: runbook gives torchrun every flag that it needs")
    elif name.startswith("RUNBOOK_"):
        yield _set_by_runbook_fault(
            f"`{name}` is runbook's own, and a rank would get this value instead", "leave it out"
        )
    elif name != name.upper() and (name.upper() in known_variables() or name.upper().startswith(_CLOSED_PREFIXES)):
        message = f"`{name}` is read by nothing: names of variables are upper case"
        meant = known_variables().get(name.upper())
        help = next((fault.help for fault in _known_name_faults(meant) if fault.help), None) if meant else None
        yield VariableFault("wrong-case", message, help or f"write `{name.upper()}`", of_name=True)
    else:
        yield from _unknown_name_faults(name, suggest=suggest)


def _known_name_faults(variable: Variable) -> Iterator[VariableFault]:
    name = variable.name
    if variable.set_by_runbook:
        place = f"say it with {variable.use}, and leave this out" if variable.use else "leave it out"
        yield _set_by_runbook_fault(
            f"`{name}` is set by runbook for every rank, and this would give all of them one value", place
        )
    elif variable.never:
        message = f"there is no `{name}`: no release of {variable.reader} ever read it"
        yield VariableFault("never-existed", message, variable.use, of_name=True)
    elif variable.removed or variable.last:
        yield _removed_variable_fault(variable)
    elif variable.deprecated and variable.use and variable.use in known_variables() and variable.reader != "NCCL":
        message = f"`{name}` is an old name: {variable.reader} renamed it in {variable.deprecated}"
        yield VariableFault("renamed-variable", message, f"write `{variable.use}`", of_name=True)
    elif variable.deprecated:
        message = f"`{name}` is deprecated since {variable.reader} {variable.deprecated}"
        yield VariableFault("deprecated-variable", message, _replacement_help(variable), of_name=True)


def _removed_variable_fault(variable: Variable) -> VariableFault:
    """The fault of a variable that newer releases do not read."""
    if variable.removed:
        version, when = variable.removed, f"since {variable.reader} {variable.removed}"
    else:
        version, when = variable.last or "", f"after {variable.reader} {variable.last}"
    message = f"`{variable.name}` is read by nothing {when}"
    return VariableFault(
        "removed-variable" if _version_numbers(version) <= OLDEST_NCCL else "deprecated-variable",
        message,
        _replacement_help(variable),
        of_name=True,
    )


def _replacement_help(variable: Variable) -> str:
    successor = known_variables().get(variable.use or "")
    if successor is None:
        return variable.use or "leave it out"
    young = successor.since is not None and _version_numbers(successor.since) > OLDEST_NCCL
    return f"use `{successor.name}`" + (f" ({variable.reader} {successor.since} and newer)" if young else "")


def _version_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall("[0-9]+", version))


def _set_by_runbook_fault(message: str, help: str) -> VariableFault:
    return VariableFault("set-by-runbook", message, help, of_name=True)


def _unknown_name_faults(name: str, *, suggest: bool) -> Iterator[VariableFault]:
    ours = name.startswith((*_CLOSED_PREFIXES, *_OPEN_PREFIXES)) or is_slip_of("NCCL", name.partition("_")[0])
    if not ours:
        return
    near, slip = closest_variable(name) if suggest else (None, False)
    if near is not None and slip:
        message = f"there is no variable `{name}`"
        yield VariableFault("misspelt-variable", message, f"did you mean `{near}`?", of_name=True)
    elif name.startswith(_CLOSED_PREFIXES) and not _PLUGINS.match(name):
        message = f"`{name}` is in no list of what {_likely_reader(name)} reads"
        yield VariableFault("unknown-variable", message, f"did you mean `{near}`?" if near else None, of_name=True)


def _likely_reader(name: str) -> str:
    if name.startswith("JAX_"):
        return "JAX"
    return "gloo" if name.startswith("GLOO_") else "PyTorch" if name.startswith("TORCH") else "NCCL"


# Which known variable an unknown one was meant to be.

_MAX_TYPOS = 2  # letters wrong, missing, too many or exchanged, in a word that is long enough for it


def closest_variable(name: str) -> tuple[str | None, bool]:
    """The known name closest to `name`, and whether `name` can only be a slip of it; (None, False) if none is near."""
    names = [
        one for one, variable in known_variables().items() if not (variable.never or variable.removed or variable.last)
    ]
    other_reader = f"TORCH_{name}" if name.startswith("NCCL_") else name.removeprefix("TORCH_")
    words = sorted(name.split("_"))
    joined = name.replace("_", "")
    for one in names:
        if one == other_reader or one.replace("_", "") == joined or sorted(one.split("_")) == words:
            return one, True
    for one in names:
        if abs(len(one) - len(name)) <= _MAX_TYPOS and _is_misspelling(one, name):
            return one, True
    family = name.partition("_")[0]
    stems = [one.partition("_")[2] for one in names if one.partition("_")[0] == family]
    near = difflib.get_close_matches(name.partition("_")[2], stems, n=1, cutoff=0.7)
    return (f"{family}_{near[0]}" if near else None), False


def is_slip_of(family: str, word: str) -> bool:
    """Whether `word` is `family` with one slip; names of sister libraries, such as RCCL and HCCL, are not NCCL
    misspelt."""
    near = word != family and abs(len(word) - len(family)) <= 1 and not re.fullmatch("[A-Z]CCL", word)
    return near and _edit_distance(family, word) <= 1


def _is_misspelling(one: str, other: str) -> bool:
    """Whether two names differ in few letters, word by word: _IB_TC and _IB_SL are two things, and so are LL and
    LL128."""
    ours, theirs = one.split("_"), other.split("_")
    if len(ours) != len(theirs):
        return False
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    if len(different) > _MAX_TYPOS:
        return False
    return all(_is_word_misspelt(a, b) for a, b in different)


def _is_word_misspelt(meant: str, written: str) -> bool:
    if _is_abbreviation(meant, written) or _is_abbreviation(written, meant):
        return True
    allowed = 0 if len(meant) < 3 else 1 if len(meant) < 5 else _MAX_TYPOS
    letters = re.sub("[0-9]", "", meant), re.sub("[0-9]", "", written)
    if letters[0] == letters[1]:
        return False  # only digits differ: another level, not another spelling
    if sum(((Counter(meant) - Counter(written)) + (Counter(written) - Counter(meant))).values()) > 2 * allowed:
        return False
    return _edit_distance(meant, written) <= allowed


def _is_abbreviation(short: str, long: str) -> bool:
    """Whether `short` abbreviates `long`, as CNT does COUNT; a word with digits, such as P2P, abbreviates nothing."""
    if not (2 < len(short) < len(long) <= len(short) + 3 and short.isalpha() and short[0] == long[0]):
        return False
    letters = iter(long)
    return all(letter in letters for letter in short)


def _edit_distance(one: str, other: str) -> int:
    """The number of insertions, deletions, replacements and exchanges of neighbours from one word to the other."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, a in enumerate(one, 1):
        line = [row]
        for column, b in enumerate(other, 1):
            best = min(above[column] + 1, line[-1] + 1, above[column - 1] + (a != b))
            if row > 1 and column > 1 and a == other[column - 2] and one[row - 2] == b:
                best = min(best, before[column - 2] + 1)
            line.append(best)
        before, above = above, line
    return above[-1]
