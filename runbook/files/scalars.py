"""Reads single values as people write them: unquoted scalars of YAML, durations, amounts of memory and ports. Writes
values on one line, so that they mean the same to our reader and to readers of YAML 1.1."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

Scalar = str | int | float | bool | None

_INTEGER = re.compile(r"\A-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"\A-?(0|[1-9][0-9]*)\.[0-9]+([eE][-+]?[0-9]+)?")
_NULLS = ("", "~", "null")
_UNQUOTED_WORD = re.compile(r"(?:--?(?=[A-Za-z]))?[A-Za-z0-9_./~][A-Za-z0-9_./~@+=-]*")
_PREFIXED_INTEGER = re.compile(r"[-+]?0[oxb][0-9A-Fa-f_]+")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, as only an escape makes it; no YAML reader takes it
YAML_RESOLVER: Any = yaml.resolver.Resolver()
_TEXT_TAG = "tag:yaml.org,2002:str"
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


class TypedFloat(float):
    """A float whose text is the text that was typed: the version `2.10` does not become 2.1 in a template."""

    __slots__ = ("_typed",)
    _typed: str

    def __new__(cls, typed: str) -> TypedFloat:
        number = super().__new__(cls, typed)
        number._typed = typed
        return number

    def __str__(self) -> str:
        return self._typed


def plain_scalar(text: str) -> Scalar:
    """The value of an unquoted scalar."""
    if text in _NULLS:
        return None
    if text == "true":
        return True
    if text == "false":
        return False
    if len(text) < 400:  # longer ones do not occur, and Python refuses to parse very long ones
        if _INTEGER.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
            return float(text)
    return text


def flow_yaml(value: object) -> str:
    """The value as YAML on one line: a scalar, `[a, b]` or `{key: value}`. Raises ValueError for a value that our
    reader could not read back."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{scalar_yaml(str(key))}: {flow_yaml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow_yaml, value)) + "]"
    return scalar_yaml(value)


def scalar_yaml(value: object) -> str:
    """A single value as YAML, quoted where some reader could take it for another type. Raises ValueError as `flow`."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = re.sub(r"^(-?[0-9]+)e", r"\1.0e", repr(value))
        if isinstance(plain_scalar(text), str):  # inf, nan, a thousand digits
            raise ValueError(f"{text} cannot be written as a number")
        return text
    text = str(value)
    if _LONE_SURROGATE.search(text):
        raise ValueError("half of a character cannot be written")
    if not _UNQUOTED_WORD.fullmatch(text) or not isinstance(plain_scalar(text), str) or _is_ambiguous_text(text):
        return '"' + "".join(map(_escaped_char, text)) + '"'
    return text


def _is_ambiguous_text(text: str) -> bool:
    """Whether some YAML reader takes the bare text for a boolean, a number or a date: `no`, `0644`, `1_000`, `1e3`,
    `0o7`."""
    if YAML_RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) != _TEXT_TAG or _PREFIXED_INTEGER.fullmatch(text):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escaped_char(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_MAX_DURATION_S = 366 * 24 * 3600.0


def parse_seconds(value: object) -> float:
    """The seconds of a duration (`500ms`, `2m`; a bare number is seconds): above zero and at most a year. Raises
    ValueError with a sentence for people."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration: write 500ms, 10s, 2m or 1h")
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a duration: write {_meant_duration(str(value)) or '500ms, 10s, 2m or 1h'}")
    length = float(match[1]) * _SECONDS[match[2]]
    if not 0 < length <= _MAX_DURATION_S or not math.isfinite(length):
        raise ValueError(f"`{value}` is not a duration above zero and below a year")
    return length


_DURATION_PART = r"([0-9]{1,9})\s*(s|sec|m|min|h|hr|hour|d|day|second|minute)s?"
_COMPOUND_DURATION = re.compile(rf"(?:{_DURATION_PART}[\s,]*)+", re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{2})")


def _meant_duration(text: str) -> str | None:
    """The duration that `10 minutes`, `1h30m`, `1 day` or Slurm's `12:30:00` means, as runbook writes it; None for
    other text."""
    text = text.strip()
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        total = hours * 3600 + minutes * 60 + rest
    elif _COMPOUND_DURATION.fullmatch(text):
        units = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
        total = sum(
            int(number) * units[unit[0].lower()] for number, unit in re.findall(_DURATION_PART, text, re.IGNORECASE)
        )
    else:
        return None
    unit = next((name for name, length in (("h", 3600), ("m", 60)) if total % length == 0), "s")
    return f"{total // int(_SECONDS[unit])}{unit}" if 0 < total <= _MAX_DURATION_S else None


# Amounts of memory as people write them: `1K`, `1Ki` and `1KiB` are 1024 bytes, and so on up to T; `4096` is bytes.

_POWER_BY_PREFIX = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?:([kmgt]?)b?|([kmgt])ib?)", re.IGNORECASE)


def parse_size_bytes(value: object) -> int:
    """The whole bytes, zero or more, of an amount of memory. Raises ValueError with a sentence for people."""
    from fractions import Fraction  # a slow import, needed only where a file gives a size

    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a size: write 4096, 1K, 16M or 1G")
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a size: write 4096, 1K, 16M or 1G")
    size = Fraction(match[1]) * 1024 ** _POWER_BY_PREFIX[(match[2] or match[3] or "").lower()]
    if size.denominator != 1:
        raise ValueError(f"`{value}` is not a whole number of bytes")
    return int(size)


# TCP ports as people write them: `29500`, `29500-29510`, or a list of these.

MAX_PORT = 65535
_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_OTHER_RANGE = re.compile(r"([0-9]{1,5})\s*(?::|\.\.+|to|~|[\u2010-\u2015\uff0d\uff5e])\s*([0-9]{1,5})")


def parse_port_ranges(value: object) -> tuple[tuple[int, int], ...]:
    """The inclusive ranges (first, last) in the order written. Raises ValueError with a sentence for people."""
    if isinstance(value, list):
        return tuple(found for item in value for found in parse_port_ranges(item))
    if isinstance(value, str) and "," in value:
        return parse_port_ranges([part.strip() for part in value.split(",")])
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{value!r} is not a port: write 29500 or 29500-29510")
    match = _RANGE.fullmatch(str(value).strip())
    if match is None:
        other = _OTHER_RANGE.fullmatch(str(value).strip())
        meant = f"{other[1]}-{other[2]}" if other else "29500 or 29500-29510"
        raise ValueError(f"`{value}` is not a port: write {meant}")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    for port in (first, last):
        if not 1 <= port <= MAX_PORT:
            raise ValueError(port_range_message(port))
    if last < first:
        raise ValueError(f"the range of ports {first}-{last} runs backwards: write {last}-{first}")
    return ((first, last),)


def port_range_message(port: int | float) -> str:
    return f"port {port} is above {MAX_PORT}" if port > MAX_PORT else f"port {port} is below 1"
