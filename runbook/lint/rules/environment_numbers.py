"""Numbers and switches as their readers take them: NCCL's strtoll, PyTorch's stoi and getCvarBool, Python's int."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.environment_fault import VariableFault
from runbook.lint.variables.table import Variable

ON = frozenset(("1", "t", "true", "y", "yes"))
OFF = frozenset(("0", "f", "false", "n", "no"))
_WORDS_ON = ON | {"on", "enable", "enabled"}
_WORDS_OFF = OFF | {"off", "disable", "disabled"}
_STRTOLL = re.compile(r"\A\s*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", re.ASCII)
_STOI = re.compile(r"\A\s*([+-]?)([0-9]+)", re.ASCII)
_UNIT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Zµ%]+)", re.ASCII)
_BYTES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MS = {"ms": 1, "s": 1000, "sec": 1000, "m": 60_000, "min": 60_000}
_INT64 = 1 << 63
_LONGEST = 40  # characters of a value that a message repeats


def shown(text: str) -> str:
    return f"`{text}`" if len(text) <= _LONGEST else f"`{text[:_LONGEST]}…`"


def number_read(variable: Variable, text: str) -> int | None:
    """The number that the reader takes from a text; None where it refuses the text. An empty text is no number."""
    pattern = _STRTOLL if variable.reader in ("NCCL", "CUDA") else _STOI
    found = pattern.match(text)
    if found is None:
        return 0 if variable.reader in ("NCCL", "CUDA") and text else None
    digits = found[2][:400]
    base = 16 if digits[:2] in ("0x", "0X") else 8 if pattern is _STRTOLL and digits[0] == "0" else 10
    value = int(digits, base)
    return -value if found[1] == "-" else value


def is_on(variable: Variable, text: str) -> bool:
    """Whether a switch or a boolean is switched on by this text."""
    if variable.kind == "boolean":
        return text.strip().lower() in (ON | {"on"} if variable.reader == "JAX" else ON)
    return text == "1" if variable.reader == "PyTorch" else number_read(variable, text) == 1


def integer_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    value = number_read(variable, text)
    reads = _reads(variable, text, value)
    bare = text.strip()
    unit = _UNIT.fullmatch(bare)
    if re.fullmatch(r"[+-]?([1-9][0-9]*|0)", bare, re.ASCII) and len(bare) < 400:
        yield from _range_faults(variable, int(bare), text)
    elif re.fullmatch(r"[+-]?0[xX][0-9a-fA-F]{1,16}", bare, re.ASCII) and variable.reader == "NCCL":
        yield from _range_faults(variable, value or 0, text)
    elif unit is not None and unit[2].lower() not in ("x", "e"):
        yield VariableFault(
            "unit-in-number", f"`{variable.name}` is a plain number{_in(variable)}: {reads}", _without(variable, unit)
        )
    elif re.fullmatch(r"[+-]?0[0-9]+", bare, re.ASCII):
        help = f"write `{bare.lstrip('+-0') or '0'}`, without zeros in front"
        if variable.reader == "NCCL" and value != int(bare[:400]):
            yield VariableFault("not-a-number", f"a zero in front makes a number octal: {reads}", help)
    else:
        word = bare.lower()
        help = f"write `{1 if word in _WORDS_ON else 0}`" if word in _WORDS_ON | _WORDS_OFF else _takes(variable)
        yield VariableFault("not-a-number", f"`{variable.name}` is a whole number: {reads}", help)


def switch_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    """0 or 1. A word for off does what it says, for it is read as 0 too."""
    bare = text.strip()
    if bare in ("0", "1") or bare.lower() in _WORDS_OFF:
        return
    if bare.isdigit():
        reads = f"{shown(bare)} is neither"
    elif variable.reader in ("NCCL", "CUDA"):
        reads = _reads(variable, text, number_read(variable, text))
    else:
        reads = f"{variable.reader} takes `1` for on and everything else for off"
    help = "write `1`" if bare.lower() in _WORDS_ON else "write `1` or `0`"
    yield VariableFault("not-a-switch", f"`{variable.name}` is 0 or 1: {reads}", help)


def boolean_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    word = text.lower()
    more = ("on", "off") if variable.reader == "JAX" else ()
    if word not in ON | OFF and word not in more:
        message = f"`{variable.name}` is true or false: {variable.reader} stops with an error at {shown(text)}"
        help = "write `1`" if word in _WORDS_ON else "write `0`" if word in _WORDS_OFF else "write `1` or `0`"
        yield VariableFault("not-a-switch", message, help)


def number_faults(variable: Variable, text: str) -> Iterator[VariableFault]:
    try:
        value = float(text)
    except ValueError:
        yield VariableFault(
            "not-a-number", f"`{variable.name}` is a number, and {shown(text)} is none", _takes(variable)
        )
        return
    yield from _range_faults(variable, value, text)


def _range_faults(variable: Variable, value: float, text: str) -> Iterator[VariableFault]:
    low, high = variable.lowest, variable.highest
    if variable.name == "NCCL_IB_TIMEOUT" and (value == 0 or value >= 32):
        message = f"{shown(text)} means that NCCL waits for ever: a lost packet becomes a job that hangs"
        yield VariableFault(
            "endless-timeout", message, "the wait is 4 µs · 2^N for each of the retries: 20 is NCCL's own, 22 is long"
        )
    elif (low is not None and value < low) or (high is not None and value > high) or not -_INT64 <= value < _INT64:
        yield VariableFault("out-of-range", f"`{variable.name}` cannot be {shown(text)}", _takes(variable))
    elif variable.name == "NCCL_IB_TIMEOUT" and value >= 25:
        seconds = 4.096e-6 * 2**value * 7
        message = f"with {shown(text)} NCCL notices a dead link after {seconds / 60:.0f} minutes at the earliest"
        help = "PyTorch gives up after 10 minutes, so nobody will be told which link it was: 22 is two minutes"
        yield VariableFault("slow-timeout", message, help)


def _reads(variable: Variable, text: str, value: int | None) -> str:
    if value is None or (variable.reader not in ("NCCL", "CUDA", "PyTorch")):
        return f"{variable.reader} stops with an error at {shown(text)}"
    return f"{variable.reader} reads {shown(text)} as {value}"


def _in(variable: Variable) -> str:
    units = {"bytes": " of bytes", "ms": " of milliseconds", "s": " of seconds", "min": " of minutes"}
    return units.get(variable.unit or "", "")


def _without(variable: Variable, unit: re.Match[str]) -> str:
    size = unit[2].lower().removesuffix("ib").removesuffix("b")
    time = unit[2].lower()
    number = float(unit[1]) if len(unit[1]) < 16 else 0.0
    factor = _BYTES.get(size) if variable.unit == "bytes" else _MS.get(time) if variable.unit == "ms" else None
    if variable.unit == "s" and time in _MS:
        factor = _MS[time] // 1000
    if factor and number * factor == int(number * factor) and number:
        return f"write `{int(number * factor)}`"
    return _takes(variable) if variable.unit else "write the number alone"


def _takes(variable: Variable) -> str:
    low, high = variable.lowest, variable.highest
    what = "a number" if variable.kind == "number" else "a whole number"
    if low is not None and high is not None:
        return f"it takes {low} or {high}" if high - low == 1 else f"it takes {what} from {low} to {high}"
    return f"it takes {what}{_in(variable)}" + ("" if low is None else f", {low} or more")
