"""Takes the command line of a launcher that starts ranks itself apart: which launcher it is, its options, and the
program that it starts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath

from runbook.launch.shell_commands import shell_commands

LAUNCHERS = ("torchrun", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
"""Programs that start ranks themselves."""
RANKS_PER_NODE_OPTIONS = ("nproc-per-node", "ntasks-per-node", "num-gpus", "npernode", "ppn")
"""Options for the number of ranks on a node, in the launchers' various names."""
WORLD_SIZE_OPTIONS = ("np", "n", "ntasks", "num-processes")
"""Options for the number of ranks on all nodes."""
NODE_COUNT_OPTIONS = ("nnodes", "num-nodes", "num-machines", "nodes")
"""Options for the number of nodes."""
RENDEZVOUS_PORT_OPTIONS = ("master-port", "main-process-port")
"""Options for the rendezvous port."""

_SLURM_OPTION_BY_LETTER = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "E": "preserve-env",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "I": "immediate",
    "i": "input",
    "J": "job-name",
    "K": "kill-on-bad-exit",
    "k": "no-kill",
    "L": "licenses",
    "l": "label",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "r": "relative",
    "S": "core-spec",
    "s": "oversubscribe",
    "T": "threads",
    "t": "time",
    "u": "unbuffered",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "X": "disable-status",
    "x": "exclude",
}
"""Long names of the options of srun and sbatch, by the letters that stand for them in their manual pages."""
_MPI_OPTION_BY_LETTER = {"N": "npernode", "n": "np", "c": "np", "H": "host", "wd": "wdir"}
_SHORT_OPTIONS = {
    **dict.fromkeys(("srun", "sbatch"), _SLURM_OPTION_BY_LETTER),
    **dict.fromkeys(("mpirun", "mpiexec"), _MPI_OPTION_BY_LETTER),
    "horovodrun": {"H": "hosts"},
    "deepspeed": {"H": "hostfile"},
}
"""By launcher, the long names of its short options."""

_LAUNCHER_MODULES = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torch.distributed.launch"}
"""By module that `python -m` runs, the value of `launcher:` for it."""
_SHELLS = ("sh", "bash", "dash", "zsh")
"""Shells whose `-c` text is searched."""
_WRAPPERS = (
    *("sudo", "env", "nice", "nohup", "time", "exec", "stdbuf", "command"),
    *("timeout", "numactl", "ionice", "setsid", "taskset", "chrt"),
)
"""Programs that only start the program after them."""
_WRAPPER_NUMBER = re.compile(r"[0-9][0-9.,-]*[smhd]?")
"""A value of a wrapper: `timeout 2h`, `nice -n 10`, `taskset 0-7`."""
_PYTHON = re.compile(r"(?:.*[/\\])?(?:python|pypy)[0-9.]*(?:\.exe)?", re.IGNORECASE)
_SHORT_WITH_VALUE = re.compile(r"-[A-Za-z][^=]")
_SETTING = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OPTION = re.compile(r"--?([A-Za-z][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_MAX_NESTED_LAUNCHERS = 4  # how many launchers inside each other are taken apart: srun, a shell, torchrun
_MAX_LAUNCHER_WORDS = 200  # the most words of a launcher's line among which the beginning of the program is looked for


@dataclass(frozen=True, slots=True)
class LauncherLine:
    """A launcher's command line. `name`: the launcher as it stands in the line. `launcher`: the value of `launcher:`
    for it, or None. `given`: its options in their order, each a long name without dashes and with `_` as `-`, and a
    value, which is the next word for a switch and empty for one at the end. `program`: the command that the launcher
    starts as every rank, as `command:` takes it; empty if the line does not show where it begins. `settings`: the words
    `NAME=value` that `env` takes before it. `before` and `after`: the other commands of the text of `bash -c` in which
    it stands. `around`: the launchers that start this one, outermost first."""

    name: str
    launcher: str | None
    given: tuple[tuple[str, str], ...]
    program: tuple[str, ...]
    settings: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    around: tuple[LauncherLine, ...] = ()

    @property
    def options(self) -> Mapping[str, str]:
        """The value of each option; the last one for an option that is given more than once."""
        return dict(self.given)


def launcher_line(words: Sequence[str]) -> LauncherLine | None:
    """The line of the innermost launcher: for `srun torchrun … train.py`, torchrun's. None if the words begin with no
    launcher. The text that a shell is given with `-c` is searched as well."""
    found: list[LauncherLine] = []
    for _ in range(_MAX_NESTED_LAUNCHERS):
        inner = _outermost_launcher(words)
        if inner is None:
            break
        found.append(inner)
        words = inner.program
    return replace(found[-1], around=tuple(found[:-1])) if found else None


def option_values(words: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """The options written as `--option=value` or `--option value`: name, value, and the index of the word with the
    value. A switch cannot be told from an option, so the word after it is given as its value; a switch at the end has
    an empty one."""
    for index, word in enumerate(words):
        found = _OPTION.fullmatch(word)
        if found is None:
            continue
        if found[2] is not None:
            yield found[1], found[2], index
        elif index + 1 < len(words):
            yield found[1], words[index + 1], index + 1
        else:
            yield found[1], "", index


def long_options(launcher: str, words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The options among a launcher's words, or sbatch's, in their order: each a long name without dashes and with `_`
    as `-`, and its value as `option_values` gives it."""
    names = _SHORT_OPTIONS.get(launcher, {})
    options = option_values(_split_slurm_options(words) if launcher in ("srun", "sbatch") else words)
    return tuple((names.get(option, option.replace("_", "-")), value) for option, value, _ in options)


def _split_slurm_options(words: Iterable[str]) -> list[str]:
    """The words, with `-N2` of srun or sbatch as `-N 2`."""
    return [part for word in words for part in ((word[:2], word[2:]) if _SHORT_WITH_VALUE.match(word) else (word,))]


def is_python(word: str) -> bool:
    """Whether a word of a command is a Python interpreter, with its path or without."""
    return _PYTHON.fullmatch(word) is not None


def unwrapped_words(words: Sequence[str]) -> list[str]:
    """The words without `sudo -n`, `env A=b` and the like before the program."""
    last = len(words) - 1
    begin = next((at for at, word in enumerate(words) if at == last or not _is_wrapper_word(word)), 0)
    return list(words[begin:])


def _is_wrapper_word(word: str) -> bool:
    """Whether a word stands before the program: a wrapper, its option or number, or a setting."""
    return word in _WRAPPERS or word.startswith("-") or "=" in word or _WRAPPER_NUMBER.fullmatch(word) is not None


def _outermost_launcher(typed: Sequence[str]) -> LauncherLine | None:
    """The line of the launcher with which the words begin, or None."""
    words = unwrapped_words(typed)
    found = _launcher_after_wrappers(words) if words else None
    settings = tuple(word for word in typed[: len(typed) - len(words)] if _SETTING.fullmatch(word))
    return replace(found, settings=(*settings, *found.settings)) if found and settings else found


def _launcher_after_wrappers(words: Sequence[str]) -> LauncherLine | None:
    first = PurePosixPath(words[0]).name
    if first in LAUNCHERS:
        return _make_launcher_line(first, "torchrun" if first == "torchrun" else None, words[1:])
    if first == "accelerate" and tuple(words[1:2]) == ("launch",):
        return _make_launcher_line("accelerate launch", None, words[2:])
    if first in _SHELLS:
        return _launcher_in_shell_text(words)
    module = _module_index(words) if is_python(words[0]) else 0
    if module and words[module] in _LAUNCHER_MODULES:
        return _make_launcher_line(f"-m {words[module]}", _LAUNCHER_MODULES[words[module]], words[module + 1 :])
    return None


def _module_index(words: Sequence[str]) -> int:
    """The index of MODULE in `python -u -m MODULE`; 0 if there is none."""
    at = next((at for at, word in enumerate(words[1:], 1) if word == "-m" or not word.startswith("-")), 0)
    return at + 1 if at and words[at] == "-m" and at + 1 < len(words) else 0


def _launcher_in_shell_text(words: Sequence[str]) -> LauncherLine | None:
    """The first launcher's line in the text of `bash -c "cd /work && torchrun …"`, or None."""
    text = next((text for flag, text in pairwise(words) if re.fullmatch("-[a-z]*c", flag)), "")
    parts = shell_commands(text)
    for at, part in enumerate(parts):
        if found := _outermost_launcher(part.words()):
            before, after = (tuple(one.text for one in some) for some in (parts[:at], parts[at + 1 :]))
            return replace(found, before=(*before, *found.before), after=(*found.after, *after))
    return None


def _make_launcher_line(name: str, launcher: str | None, words: Sequence[str]) -> LauncherLine:
    """A launcher's line, divided into its options and the program."""
    most = min(len(words), _MAX_LAUNCHER_WORDS)
    begin = next((at for at in range(most) if _is_program_start(words[at:], of_torch=launcher is not None)), None)
    given = words if begin is None else words[:begin]
    program = () if begin is None else tuple(words[begin:])
    if program and program[0] in ("-m", "--module"):
        program = ("python", "-m", *program[1:])
    return LauncherLine(name, launcher, long_options(name, given), program)


def _is_program_start(words: Sequence[str], *, of_torch: bool) -> bool:
    """Whether these words are a program with its arguments, and not a launcher's options or their values."""
    if of_torch and words[0] in ("-m", "--module"):
        return len(words) > 1
    name = PurePosixPath(words[0]).name
    known = name in (*LAUNCHERS, *_SHELLS, *_WRAPPERS) or tuple(words[:2]) == ("accelerate", "launch")
    return known or name.endswith(".py") or is_python(words[0])
