"""Values out of a list of words: levels of logging, distances between devices, algorithms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from runbook.lint.rules.environment_fault import VariableFault
from runbook.lint.rules.environment_numbers import shown
from runbook.lint.variables.table import Variable
from runbook.load.didyoumean import nearest

_LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")  # what 0 to 4 mean; larger numbers mean the last
_FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "AllToAll", "SendRecv", "Send", "Recv")


def choice_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    bare = text.strip()
    if _is_one_of(variable, bare):
        return
    if variable.open_choice and bare.lower() not in variable.mistaken:
        return
    yield VariableFault("bad-choice", _not_one(variable, bare), _help(variable, bare))


def level_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """How far apart two devices may be. NCCL compares letter by letter and takes what begins with a digit as a number."""
    bare = text.strip()
    if bare in variable.choices:
        return
    if re.match("[0-9]", bare, re.ASCII):
        number = int(re.match("[0-9]{1,3}", bare, re.ASCII)[0])  # type: ignore[index]
        name = _LEGACY_LEVELS[min(number, len(_LEGACY_LEVELS) - 1)]
        message = (
            f"numbers for `{variable.name}` are the old style, and have meant different things: this one is `{name}`"
        )
        yield VariableFault("legacy-level", message, f"write `{name}`")
    else:
        yield VariableFault("bad-choice", _not_one(variable, bare), _help(variable, bare))


def set_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """A list of words; `^` in front takes all but these."""
    for word in text.strip().removeprefix("^").split(variable.separator):
        bare = word.strip()
        if bare and not _is_one_of(variable, bare):
            yield VariableFault("bad-choice", _not_one(variable, bare), _help(variable, bare))
            return


def per_function_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """`Ring,Tree`, `^PAT`, or since NCCL 2.24 `allreduce:Tree;broadcast:^Ring`."""
    for part in text.split(";"):
        function, colon, words = part.rpartition(":")
        if colon and not _any_case(function.strip(), _FUNCTIONS):
            near = nearest(function.strip(), _FUNCTIONS)
            message = f"{shown(function.strip())} is no function of NCCL"
            yield VariableFault(
                "bad-choice", message, f"did you mean `{near}`?" if near else f"it has {_listed(_FUNCTIONS)}"
            )
            return
        yield from list(set_faults(variable, words))[:1]


def _is_one_of(variable: Variable, word: str) -> bool:
    if variable.exact_case:
        return word in variable.choices or word in variable.hidden_choices
    return _any_case(word, (*variable.choices, *variable.hidden_choices))


def _any_case(word: str, words: Sequence[str]) -> bool:
    return word.lower() in (one.lower() for one in words)


def _not_one(variable: Variable, word: str) -> str:
    return f"{shown(word)} is not a value of `{variable.name}`: {_consequence(variable)}"


def _consequence(variable: Variable) -> str:
    if variable.name == "NCCL_DEBUG":
        return "NCCL then prints nothing at all"
    if variable.name == "NCCL_NET":
        return "NCCL looks for a network of that name and stops"
    if variable.name == "TORCH_CPP_LOG_LEVEL" or (variable.reader == "gloo" and variable.name == "GLOO_LOG_LEVEL"):
        return f"{variable.reader} falls back to its default"
    if variable.reader == "NCCL" and variable.kind != "per-function":
        return "NCCL passes over it"
    return f"{variable.reader} stops with an error"


def _help(variable: Variable, word: str) -> str:
    meant = variable.mistaken.get(word.lower())
    same = next((one for one in variable.choices if one.lower() == word.lower()), None)
    near = meant or same or nearest(word, variable.choices)
    takes = f"it takes {_listed(variable.choices)}"
    if same is not None:
        return f"write `{same}`: the case matters"
    return f"did you mean `{near}`? {takes}" if near else takes


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
