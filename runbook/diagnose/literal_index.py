"""Finds which of many sets of literals have one on a line: the line's words limit the literals that it could hold, and
only those are searched."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORDS = 100_000  # remembered
WORD_BYTES = 200  # a longer one is not remembered
DIGITS = b"0123456789"

_Keys = dict[bytes, frozenset[int]]
"""Literals, each with the numbers of the sets that it is in."""
_About = tuple[frozenset[int], _Keys, _Keys]
"""Of a word: the sets with a literal in it, literals that go on beyond it, and all literals that a line with it could
hold."""
NOTHING: _About = (frozenset(), {}, {})


class Index:
    """`find` gives the numbers of the sets that have a literal on a line, in order; exact. Literals hold no digits."""

    def __init__(self, literals: Sequence[tuple[str, ...]]) -> None:
        owners: dict[bytes, set[int]] = {}
        for at, keys in enumerate(literals):
            for key in keys:
                owners.setdefault(key.encode(), set()).add(at)
        # A line that holds a literal has a word that holds the literal's longest word.
        self._by_word: dict[bytes, _Keys] = {}
        for literal, sets in owners.items():
            self._by_word.setdefault(max(literal.split(), key=len), {})[literal] = frozenset(sets)
        self._held: dict[bytes, _Keys] = {}
        self._search = re.compile(one_of(list(self._by_word))).search
        self._known: dict[bytes, _About] = {}

    def find(self, lowered: bytes) -> tuple[int, ...]:
        bare = lowered.translate(None, DIGITS)
        words = set(bare.split())
        typed = words if len(bare) == len(lowered) else set(lowered.split())
        found: set[int] = set()
        candidates: _Keys = {}
        known = self._known
        for word in words:
            about = known.get(word)
            if about is None:
                about = self._about(word)
                if len(known) < WORDS and len(word) < WORD_BYTES:
                    known[word] = about
            inside, beyond, keys = about
            if not keys:
                continue
            if word in typed:  # with no digits to take out: what is in the word is on the line
                found |= inside
                candidates |= beyond
            else:
                candidates |= keys
        for key, sets in candidates.items():
            if key in lowered:
                found |= sets
        return tuple(sorted(found))

    def _about(self, word: bytes) -> _About:
        match = self._search(word)
        if match is None:
            return NOTHING
        keys: _Keys = {}
        while match is not None:
            keys |= self._held_by(match[0])
            match = self._search(word, match.start() + 1)
        inside = frozenset[int]().union(*(sets for key, sets in keys.items() if key in word))
        return inside, {key: sets for key, sets in keys.items() if key not in word}, keys

    def _held_by(self, word: bytes) -> _Keys:
        """The literals of a longest word and of all such words inside it: where it matches, they match as well."""
        if word not in self._held:
            inside = (keys for other, keys in self._by_word.items() if other in word)
            self._held[word] = {key: sets for keys in inside for key, sets in keys.items()}
        return self._held[word]


def one_of(keys: list[bytes]) -> bytes:
    """A pattern that matches the longest of the keys at a place, its alternatives sharing their beginnings."""
    ends = b"" in keys
    firsts = sorted({key[:1] for key in keys if key})
    branches = [re.escape(first) + one_of([key[1:] for key in keys if key[:1] == first]) for first in firsts]
    if not branches:
        return b""
    body = branches[0] if len(branches) == 1 and not ends else b"(?:" + b"|".join(branches) + b")"
    return body + b"?" if ends else body
