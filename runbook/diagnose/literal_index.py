"""Finds the sets, of many sets of literals, of which a line holds a literal. The line's words limit the literals that
it could hold, and only these are searched."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_CACHED_WORDS = 100_000  # the most words that are remembered
MAX_WORD_BYTES = 200  # a word of so many bytes is not remembered
DIGITS = b"0123456789"

_SetsByLiteral = dict[bytes, frozenset[int]]
"""By a literal, the numbers of the sets that it is in."""
_WordEntry = tuple[frozenset[int], _SetsByLiteral, _SetsByLiteral]
"""For a word: the sets with a literal inside the word; the literals that may go on beyond the word; and both kinds of
literals together, which are all that a line may hold because of this word."""
EMPTY_WORD_ENTRY: _WordEntry = (frozenset(), {}, {})


class Index:
    """An index of sets of literals, numbered from 0. Literals are in lower case and hold no digits."""

    def __init__(self, literals: Sequence[tuple[str, ...]]) -> None:
        owners: dict[bytes, set[int]] = {}
        for at, keys in enumerate(literals):
            for key in keys:
                owners.setdefault(key.encode(), set()).add(at)
        # A line that holds a literal has a word that holds the literal's longest word.
        self._by_word: dict[bytes, _SetsByLiteral] = {}
        for literal, sets in owners.items():
            self._by_word.setdefault(max(literal.split(), key=len), {})[literal] = frozenset(sets)
        self._held: dict[bytes, _SetsByLiteral] = {}
        self._search = re.compile(longest_key_pattern(list(self._by_word))).search
        self._known: dict[bytes, _WordEntry] = {}

    def find(self, lowered: bytes) -> tuple[int, ...]:
        """The numbers of the sets that have a literal on the line, sorted; exact. The line is in lower case."""
        bare = lowered.translate(None, DIGITS)
        words = set(bare.split())
        typed = words if len(bare) == len(lowered) else set(lowered.split())
        found: set[int] = set()
        candidates: _SetsByLiteral = {}
        known = self._known
        for word in words:
            about = known.get(word)
            if about is None:
                about = self._about(word)
                if len(known) < MAX_CACHED_WORDS and len(word) < MAX_WORD_BYTES:
                    known[word] = about
            inside, beyond, keys = about
            if not keys:
                continue
            if word in typed:  # the word stands so on the line, not only without its digits: so do its literals
                found |= inside
                candidates |= beyond
            else:
                candidates |= keys
        for key, sets in candidates.items():
            if key in lowered:
                found |= sets
        return tuple(sorted(found))

    def _about(self, word: bytes) -> _WordEntry:
        """The literals that a line may hold because of this word."""
        match = self._search(word)
        if match is None:
            return EMPTY_WORD_ENTRY
        keys: _SetsByLiteral = {}
        while match is not None:
            keys |= self._held_by(match[0])
            match = self._search(word, match.start() + 1)
        inside: set[int] = set()
        beyond: _SetsByLiteral = {}
        for key, sets in keys.items():
            if key in word:
                inside |= sets
            else:
                beyond[key] = sets
        return frozenset(inside), beyond, keys

    def _held_by(self, word: bytes) -> _SetsByLiteral:
        """The literals whose longest word is `word`, or another such word inside it, which is on the line as well."""
        if word not in self._held:
            parts = {word[begin:end] for begin in range(len(word)) for end in range(begin + 1, len(word) + 1)}
            inside = (self._by_word[part] for part in parts if part in self._by_word)
            self._held[word] = {key: sets for keys in inside for key, sets in keys.items()}
        return self._held[word]


def longest_key_pattern(keys: list[bytes]) -> bytes:
    """A pattern that matches the longest key at a place; keys with a common beginning share it, which is fast."""
    ends = b"" in keys
    firsts = sorted({key[:1] for key in keys if key})
    branches = [
        re.escape(first) + longest_key_pattern([key[1:] for key in keys if key[:1] == first]) for first in firsts
    ]
    if not branches:
        return b""
    body = branches[0] if len(branches) == 1 and not ends else b"(?:" + b"|".join(branches) + b")"
    return body + b"?" if ends else body
