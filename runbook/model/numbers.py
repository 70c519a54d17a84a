"""Numbers in texts of others: whatever the digits, one that can be reckoned with, and no error."""

from __future__ import annotations

DIGITS = 15
MOST = 10**DIGITS
SMALL_DIGITS = 9


def number(text: str) -> int:
    """The number that decimal digits write, MOST where it is larger: Python refuses to read thousands of digits."""
    digits = text.strip()
    if len(digits) > DIGITS:
        digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= DIGITS else MOST


def small_number(text: str | None) -> int | None:
    """A rank, a count of ranks: None where nothing is written, or what has so many digits that it is none."""
    return int(text) if text and len(text) <= SMALL_DIGITS else None
