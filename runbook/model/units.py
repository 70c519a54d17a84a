"""Writes numbers, quantities and lists of names as an engineer would; reads numbers from foreign texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def significant_digits_text(number: float, digits: int = 3) -> str:
    """The number with that many significant digits, but without an exponent and with all digits before the point."""
    if not math.isfinite(number):
        return str(number)
    if number == 0:
        return "0"
    rounded = float(f"{number:.{digits - 1}e}")
    decimals = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:.{decimals}f}" if decimals > 0 else f"{number:.0f}"


def bytes_text(count: float) -> str:
    """1024 → `1 KiB`; a size that is no whole number of its unit keeps three digits."""
    power = 0
    while abs(count) >= 1024 and power < len(BYTE_UNITS) - 1:
        count /= 1024
        power += 1
    number = f"{count:.0f}" if float(count).is_integer() else significant_digits_text(count)
    return f"{number} {BYTE_UNITS[power]}"


def seconds_text(seconds: float) -> str:
    """0.04 → `40 ms`, 2.2 → `2.2 s`, 125 → `2 min 05 s`, 3900 → `1 h 05 min`."""
    if seconds <= 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def link_rate_text(gbps: float) -> str:
    """Gbit/s in, as links are rated: 0.038 → `38 Mbit/s`."""
    return _rate_text(gbps, "bit/s")


def bandwidth_text(gigabytes: float) -> str:
    """GB/s in, the unit that reads best out: 0.0235 → `23.5 MB/s`."""
    return _rate_text(gigabytes, "B/s")


def _rate_text(billions: float, unit: str) -> str:
    for size, prefix in ((1.0, "G"), (1e-3, "M"), (1e-6, "k")):
        if abs(billions) >= size:
            return f"{significant_digits_text(billions / size)} {prefix}{unit}"
    return f"{significant_digits_text(billions / 1e-9)} {unit}"


def count_text(number: int, noun: str) -> str:
    """`1 node`, `1,024 nodes`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def range_text(first: int, last: int) -> str:
    """The numbers from `first` to `last`: `8-15`, or `8` if they are the same."""
    return str(first) if first == last else f"{first}-{last}"


def range_texts(numbers: Iterable[int]) -> list[str]:
    """The numbers, in their order, with each run of consecutive numbers as one text: `0-3`, `7`."""
    runs: list[tuple[int, int]] = []
    for one in numbers:
        if runs and one == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], one)
        else:
            runs.append((one, one))
    return [range_text(*run) for run in runs]


def quantity_range_text(low: str, high: str) -> str:
    """A range of two quantities with their units: `328 to 388 GB/s`; one quantity if both are the same."""
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def first_items_text(items: Sequence[str], most: int = 6, between: str = ", ") -> str:
    """The first `most` items, for a sentence: `rank 1, rank 2 and 6 more`."""
    return between.join(items[:most]) + (f" and {len(items) - most:,} more" if len(items) > most else "")


MAX_BRIEF_CHARACTERS = 60
"""The most characters of a command line in a sentence; the evidence has the whole command line."""


def shortened_line(text: str, most: int = MAX_BRIEF_CHARACTERS) -> str:
    """The text on one line, cut to at most `most` characters, at a blank if there is one in the second half."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    head = line[: most - 1]
    return (head.rpartition(" ")[0] if " " in head[most // 2 :] else head) + "…"


def name_list_text(names: Iterable[str], *, most: int = 6, first: int = 4) -> str:
    """The names for a sentence: `node-a, node-b and node-c`; if there are more than `most`, the first `first` and how
    many others."""
    words = list(names)
    if len(words) > most:
        return f"{', '.join(words[:first])} and {len(words) - first} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


# Numbers in foreign texts: whatever the digits, the result is a usable number or None, and never an error.

MAX_NUMBER_DIGITS = 15
MAX_NUMBER = 10**MAX_NUMBER_DIGITS
"""The number that `parse_number` gives for more than MAX_NUMBER_DIGITS digits."""
MAX_SMALL_NUMBER_DIGITS = 9


def parse_number(text: str) -> int:
    """The number that decimal digits write, but MAX_NUMBER if it is larger: Python refuses to read thousands of
    digits."""
    digits = text.strip()
    if len(digits) > MAX_NUMBER_DIGITS:
        digits = digits.lstrip("0") or "0"
    return int(digits) if len(digits) <= MAX_NUMBER_DIGITS else MAX_NUMBER


def parse_whole_number(text: str) -> int | None:
    """The number, as `parse_number` reads it, if the text is nothing but the digits 0 to 9; else None: to Python `²` is
    a digit as well, though `int` refuses it."""
    return parse_number(text) if text.isascii() and text.isdigit() else None


def parse_small_number(text: str | None) -> int | None:
    """A rank or a count of ranks, from decimal digits; None without a text, or with more than MAX_SMALL_NUMBER_DIGITS
    digits."""
    return int(text) if text and len(text) <= MAX_SMALL_NUMBER_DIGITS else None
