"""Amounts of memory as people write them: `1K` is 1024 bytes, `1M`, `1G`; `1KiB` means the same; `4096` is bytes."""

from __future__ import annotations

import re
from fractions import Fraction

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*(?:([kmgt]?)(?:i?b)?)", re.IGNORECASE)


def size_bytes(value: object) -> int:
    """Whole bytes, zero or more. Raises ValueError with a sentence for people."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a size: write 4096, 1K, 16M or 1G")
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError(f"`{value}` is not a size: write 4096, 1K, 16M or 1G")
    size = Fraction(match[1]) * 1024 ** _POWERS[match[2].lower()]
    if size.denominator != 1:
        raise ValueError(f"`{value}` is not a whole number of bytes")
    return int(size)
