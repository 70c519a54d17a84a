"""Searches in texts of others, in time in proportion to the text whatever it is: patterns with bounded repetitions, and
many names at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import AnyStr

LONGEST = 300  # repetitions: a gap in a sentence, a name, a number; longer ones do not occur
_QUANTIFIER = r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<least>[0-9]+),\}|(?P<open>[*+])"
_FIRST = r"(?:\(\?[:=!]|\|)\.\*|"
_SOMEWHERE = re.compile(_QUANTIFIER, re.DOTALL)
_AT_THE_START = re.compile(_FIRST + _QUANTIFIER, re.DOTALL)


def bounded(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, but nothing is repeated more than LONGEST times.

    A search begins anew at every character: `a.*b` on a text of many a and no b reads all of it for each of them.
    Of a pattern that begins with `^`, what a group or a branch begins with, `^(?!.*a)`, is left as it is: that is tried
    once. Where two repetitions that stand side by side take the same characters this helps little; do not write them.
    """
    if isinstance(pattern, bytes):
        return re.compile(_limited(pattern.decode("latin-1")).encode("latin-1"), flags)
    return re.compile(_limited(pattern), flags)


def _limited(pattern: str) -> str:
    def limit(found: re.Match[str]) -> str:
        if found["open"]:
            return f"{{{int(found['open'] == '+')},{LONGEST}}}"
        return f"{{{found['least']},{max(LONGEST, int(found['least']))}}}" if found["least"] else found[0]

    return (_AT_THE_START if pattern.startswith("^") else _SOMEWHERE).sub(limit, pattern)


Place = tuple[int, int]
"""A place in a text: the first character, and the one after the last."""

_TOKEN = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]")
"""What a name is found by, its first one. Any letter beyond ASCII may begin a name: scripts without spaces write it
right behind another word."""


def inside_word(text: str, at: int, joins: str = "") -> bool:
    """Whether no word ends or begins at this place: ASCII letters, digits, or what joins words, on both sides of it."""
    around = text[max(0, at - 1) : at + 1]
    return len(around) == 2 and all(char.isascii() and (char.isalnum() or char in joins) for char in around)


class KnownNames:
    """Names in small letters; whether one stands there as a word by itself is for the caller to judge."""

    def __init__(self) -> None:
        self._shapes: dict[str, set[tuple[int, int]]] = {}  # of a first token: how far in the name, how long the name

    def add(self, name: str) -> None:
        if token := _TOKEN.search(name):
            self._shapes.setdefault(token[0], set()).add((token.start(), len(name)))

    def find(self, text: str) -> Iterator[tuple[Place, str]]:
        """Every place that may hold a known name, and what stands there in small letters."""
        for token in _TOKEN.finditer(text) if self._shapes else ():
            for before, length in self._shapes.get(token[0].lower(), ()):
                start = max(0, token.start() - before)
                yield (start, start + length), text[start : start + length].lower()
