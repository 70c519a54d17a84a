"""Durations, amounts of memory and ports, as people write them."""

from __future__ import annotations

import math
import re
from fractions import Fraction

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_LONGEST_S = 366 * 24 * 3600.0


def seconds(value: object) -> float:
    """Seconds, above zero and at most a year. Raises ValueError with a sentence for people."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration: write 500ms, 10s, 2m or 1h")
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a duration: write {_meant_s(str(value)) or '500ms, 10s, 2m or 1h'}")
    length = float(match[1]) * _SECONDS[match[2]]
    if not 0 < length <= _LONGEST_S or not math.isfinite(length):
        raise ValueError(f"`{value}` is not a duration above zero and below a year")
    return length


_PART = r"([0-9]{1,9})\s*(s|sec|m|min|h|hr|hour|d|day|second|minute)s?"
_PARTS = re.compile(rf"(?:{_PART}[\s,]*)+", re.IGNORECASE)
_CLOCK = re.compile(r"(?:([0-9]{1,4}):)?([0-9]{1,4}):([0-9]{2})")


def _meant_s(text: str) -> str | None:
    """What was meant by `10 minutes`, `1h30m`, `1 day` or Slurm's `12:30:00`, as it is written here."""
    text = text.strip()
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, rest = (int(part or 0) for part in clock.groups())
        total = hours * 3600 + minutes * 60 + rest
    elif _PARTS.fullmatch(text):
        units = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
        total = sum(int(number) * units[unit[0].lower()] for number, unit in re.findall(_PART, text, re.IGNORECASE))
    else:
        return None
    unit = next((name for name, length in (("h", 3600), ("m", 60)) if total % length == 0), "s")
    return f"{total // int(_SECONDS[unit])}{unit}" if 0 < total <= _LONGEST_S else None


# Amounts of memory as people write them: `1K`, `1Ki` and `1KiB` are 1024 bytes, and so on up to T; `4096` is bytes.

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?:([kmgt]?)b?|([kmgt])ib?)", re.IGNORECASE)


def size_bytes(value: object) -> int:
    """Whole bytes, zero or more. Raises ValueError with a sentence for people."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a size: write 4096, 1K, 16M or 1G")
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a size: write 4096, 1K, 16M or 1G")
    size = Fraction(match[1]) * 1024 ** _POWERS[(match[2] or match[3] or "").lower()]
    if size.denominator != 1:
        raise ValueError(f"`{value}` is not a whole number of bytes")
    return int(size)


# TCP ports as people write them: `29500`, `29500-29510`, or a list of these.

HIGHEST = 65535
_RANGE = re.compile(r"([0-9]{1,9})(?:\s*-\s*([0-9]{1,9}))?")
_OTHER_RANGE = re.compile(r"([0-9]{1,5})\s*(?::|\.\.+|to|~|[\u2010-\u2015\uff0d\uff5e])\s*([0-9]{1,5})")


def port_ranges(value: object) -> tuple[tuple[int, int], ...]:
    """Inclusive ranges in the order written. Raises ValueError with a sentence for people."""
    if isinstance(value, list):
        return tuple(found for item in value for found in port_ranges(item))
    if isinstance(value, str) and "," in value:
        return port_ranges([part.strip() for part in value.split(",")])
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
        if not 1 <= port <= HIGHEST:
            raise ValueError(port_range_message(port))
    if last < first:
        raise ValueError(f"the range of ports {first}-{last} runs backwards: write {last}-{first}")
    return ((first, last),)


def port_range_message(port: int | float) -> str:
    return f"port {port} is above {HIGHEST}" if port > HIGHEST else f"port {port} is below 1"
