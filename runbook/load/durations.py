"""Lengths of time as people write them: `500ms`, `10s`, `2m`, `1h`; a plain number is seconds."""

from __future__ import annotations

import math
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|)")
_LONGEST_S = 366 * 24 * 3600.0


def seconds(value: object) -> float:
    """Seconds, above zero and at most a year. Raises ValueError with a sentence for people."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a duration: write 500ms, 10s, 2m or 1h")
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a duration: write 500ms, 10s, 2m or 1h")
    length = float(match[1]) * _SECONDS[match[2]]
    if not 0 < length <= _LONGEST_S or not math.isfinite(length):
        raise ValueError(f"`{value}` is not a duration above zero and below a year")
    return length
