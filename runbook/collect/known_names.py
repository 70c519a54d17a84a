"""Many names, looked for in a text at once: a hundred thousand of them are not to be looked for one by one."""

from __future__ import annotations

import re
from collections.abc import Iterator

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
