"""What is wrong with the value of a variable, judged by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from runbook.lint.rules.environment_choices import choice_faults, level_faults, per_function_faults, set_faults
from runbook.lint.rules.environment_fault import VariableFault
from runbook.lint.rules.environment_numbers import (
    boolean_faults,
    integer_faults,
    is_on,
    number_faults,
    shown,
    switch_faults,
)
from runbook.lint.rules.environment_selections import adapter_faults, gloo_faults, interface_faults
from runbook.lint.variables.table import Variable, known

_JUDGES: Mapping[str, Callable[[Variable, str], Iterator[VariableFault]]] = {
    "integer": integer_faults,
    "number": number_faults,
    "switch": switch_faults,
    "boolean": boolean_faults,
    "choice": choice_faults,
    "level": level_faults,
    "set": set_faults,
    "per-function": per_function_faults,
    "interfaces": lambda variable, text: interface_faults(variable.name, text),
    "adapters": lambda variable, text: adapter_faults(variable.name, text),
    "names": lambda variable, text: gloo_faults(variable.name, text),
}
_SPACE_COUNTS = ("choice", "set", "level", "per-function", "interfaces", "adapters", "names", "boolean", "path")
_REFUSE_EMPTY = ("integer", "number", "switch", "boolean", "choice")
_SHELL = re.compile(r"(?:^|[/:=,;\s\"'])(\$[A-Z_][A-Z0-9_]+|%[A-Z_][A-Z0-9_]{3,}%)|(\$\{[A-Z_][A-Z0-9_]*\})", re.ASCII)


def value_faults(name: str, text: str) -> Iterator[VariableFault]:
    """An empty text is only judged here where it stops the program; elsewhere it depends on the rest of the file."""
    yield from _expansion(name, text)
    variable = known().get(name)
    if variable is None or variable.never or variable.set_by_runbook:
        return
    if not text:
        if _refuses_empty(variable):
            message = f"`{name}` is empty, and {variable.reader} stops with an error at that"
            yield VariableFault(
                "not-a-number" if variable.kind in ("integer", "number") else "bad-choice", message, "leave it out"
            )
        return
    if variable.kind in _SPACE_COUNTS:
        yield from _spaces(variable, text)
    if variable.kind in _JUDGES and text.strip():
        yield from _JUDGES[variable.kind](variable, text.strip() if variable.kind in _SPACE_COUNTS else text)
    yield from _left_on(variable, text)


def _refuses_empty(variable: Variable) -> bool:
    """As tried with PyTorch 2.13: its numbers, booleans and choices end the program; gloo's transport too."""
    if variable.name in ("TORCH_CPP_LOG_LEVEL", "TORCH_SHOW_CPP_STACKTRACES", "GLOO_LOG_LEVEL"):
        return False
    return (
        variable.reader in ("PyTorch", "JAX", "gloo") and variable.kind in _REFUSE_EMPTY and variable.kind != "switch"
    )


def _expansion(name: str, text: str) -> Iterator[VariableFault]:
    variable = known().get(name)
    if "$" in text or "%" in text:
        found = _SHELL.search(text)
        if found is not None:
            message = f"{shown(found[1] or found[2])} is not replaced: values reach the program letter by letter"
            yield VariableFault("not-expanded", message, "write out what it stands for on the node")
    elif text.startswith("~") and variable is not None and variable.kind == "path":
        message = f"{variable.reader} does not know `~`, and no shell sees this value"
        yield VariableFault("not-expanded", message, "write the path in full")


def _spaces(variable: Variable, text: str) -> Iterator[VariableFault]:
    if text != text.strip():
        message = f"a space belongs to the value {shown(text)}, and {variable.reader} takes it as part of the name"
        yield VariableFault("stray-space", message, f"write {shown(text.strip())}")
    elif variable.kind not in ("choice", "boolean", "path") and re.search(r"[,;]\s|\s[,;]", text):
        tight = "".join(part.strip() for part in re.split(r"([,;])", text))
        message = f"there are spaces around the commas of {shown(text)}, and {variable.reader} takes them as part of the names"
        yield VariableFault("stray-space", message, f"write {shown(tight)}")


def _left_on(variable: Variable, text: str) -> Iterator[VariableFault]:
    """What helps once, while looking for a fault, and costs every day."""
    on = variable.kind in ("switch", "boolean") and is_on(variable, text)
    if variable.turns_off and on:
        message = f"`{variable.name}` switches off {variable.turns_off}"
        yield VariableFault(
            "fast-path-off", message, "it is for finding out whether that is what fails: take it out afterwards"
        )
    if variable.leftover and (on or _has_leftover(variable, text)):
        message = f"`{variable.name}={text[:40]}` is for debugging: it {variable.costs}"
        yield VariableFault("debugging", message, "take it out when the fault is found")


def _has_leftover(variable: Variable, text: str) -> bool:
    if variable.kind in ("switch", "boolean") or text.startswith("^"):
        return False
    words = text.split(variable.separator) if variable.kind == "set" else [text]
    return any(word.strip().upper() in variable.leftover for word in words)
