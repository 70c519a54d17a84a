"""`gn[01-04]` means gn01, gn02, gn03, gn04. Zero padding is kept; several ranges in one name multiply."""

from __future__ import annotations

import itertools
import math
import re

LARGEST = 20_000  # nodes, and names from one expression; a typo such as [1-40000000] must not fill the memory

_BRACKETS = re.compile(r"\[([0-9,\- ]*)\]")


def has_range(text: str) -> bool:
    """Whether brackets with digits, dashes and commas stand in it; `[fd00::1]` and `gn[ab]` have none."""
    return _BRACKETS.search(text) is not None


def without_ranges(text: str) -> str:
    return _BRACKETS.sub("", text)


def expand(text: str) -> list[str]:
    """Every name, the leftmost range varying slowest. Raises ValueError with a sentence for people."""
    pieces = _BRACKETS.split(text)  # literal, inside of brackets, literal, …
    if len(pieces) == 1:
        return [text]
    bounds = _all_bounds(pieces, text)
    choices = [
        [str(number).zfill(width) for first, last, width in parts for number in range(first, last + 1)]
        for parts in bounds
    ]
    literals = pieces[0::2]
    return [
        literals[0] + "".join(number + literal for number, literal in zip(picked, literals[1:], strict=True))
        for picked in itertools.product(*choices)
    ]


def size(text: str) -> int:
    """How many names `expand` gives, without making them; 0 where it raises."""
    try:
        bounds = _all_bounds(_BRACKETS.split(text), text)
    except ValueError:
        return 0
    return math.prod(sum(last - first + 1 for first, last, _ in parts) for parts in bounds)


def _all_bounds(pieces: list[str], text: str) -> list[list[tuple[int, int, int]]]:
    """Of each pair of brackets. Raises ValueError for a range that is none, or that is too large."""
    bounds = [_bounds(inside, text) for inside in pieces[1::2]]
    total = 1
    for parts in bounds:
        total *= sum(last - first + 1 for first, last, _ in parts)
        if total > LARGEST:
            raise ValueError(f"`{text}` stands for more than {LARGEST:,} names")
    return bounds


def _bounds(inside: str, text: str) -> list[tuple[int, int, int]]:
    """First, last and width of each part of one pair of brackets."""
    found = []
    for part in inside.split(","):
        match = re.fullmatch(r" *([0-9]{1,18}) *(?:- *([0-9]{1,18}) *)?", part)
        if match is None:
            raise ValueError(f"`[{inside}]` in `{text}` is not a range: write [1-4], [01-16] or [1,3-5]")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low):
            raise ValueError(f"the range [{low}-{high}] in `{text}` runs backwards")
        if len(low) != len(high) and high.startswith("0"):
            raise ValueError(f"the range [{low}-{high}] in `{text}` is padded to two different widths")
        found.append((int(low), int(high), len(low) if low.startswith("0") else 0))
    return found
