"""Which of many sets of literals have one on a line, found by one regular expression."""

from __future__ import annotations

import re
from collections.abc import Sequence


class Index:
    """`find` gives the numbers of the sets that have a literal on a line, in order; exact, overlaps included."""

    def __init__(self, literals: Sequence[tuple[str, ...]]) -> None:
        owners: dict[bytes, set[int]] = {}
        for at, keys in enumerate(literals):
            for key in keys:
                owners.setdefault(key.encode(), set()).add(at)
        # A match of the longest literal at a place also holds all literals inside it.
        self._owners = {
            key: frozenset().union(*(them for other, them in owners.items() if other in key)) for key in owners
        }
        self._search = re.compile(_tree(list(owners))).search

    def find(self, lowered: bytes) -> tuple[int, ...]:
        found: set[int] = set()
        match = self._search(lowered)
        while match:
            found |= self._owners[match[0]]
            match = self._search(lowered, match.start() + 1)
        return tuple(sorted(found))


def _tree(keys: list[bytes]) -> bytes:
    """A pattern that matches the longest of the keys at a place, its alternatives sharing their beginnings."""
    ends = b"" in keys
    firsts = sorted({key[:1] for key in keys if key})
    branches = [re.escape(first) + _tree([key[1:] for key in keys if key[:1] == first]) for first in firsts]
    if not branches:
        return b""
    body = branches[0] if len(branches) == 1 and not ends else b"(?:" + b"|".join(branches) + b")"
    return body + b"?" if ends else body
