"""Searches in foreign texts that take time in proportion to the text, whatever it holds: patterns with bounded
repetitions, and many names at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import AnyStr

MAX_REPETITIONS = 300  # the most repetitions: of a gap in a sentence, a name, a number; longer ones do not occur
_QUANTIFIER = r"\\.|\[\^?\]?(?:\\.|[^\]\\]){0,2000}\]|\{(?P<least>[0-9]+),\}|(?P<open>[*+])"
_LEADING_ANYTHING = r"(?:\(\?[:=!]|\|)\.\*|"
_UNANCHORED_QUANTIFIER = re.compile(_QUANTIFIER, re.DOTALL)
_ANCHORED_QUANTIFIER = re.compile(_LEADING_ANYTHING + _QUANTIFIER, re.DOTALL)


def compile_bounded(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """As `re.compile`, but nothing is repeated more than MAX_REPETITIONS times.

    A search begins anew at every character: `a.*b` on a text of many a and no b reads the whole text for each a.
    In a pattern that begins with `^`, a `.*` at the start of a lookahead, group or branch, as in `^(?!.*a)`, stays
    unbounded, since it is tried once. Bounds help little if two adjacent repetitions take the same characters: do not
    write such patterns.
    """
    if isinstance(pattern, bytes):
        return re.compile(_bounded_pattern(pattern.decode("latin-1")).encode("latin-1"), flags)
    return re.compile(_bounded_pattern(pattern), flags)


def _bounded_pattern(pattern: str) -> str:
    def limit(found: re.Match[str]) -> str:
        if found["open"]:
            return f"{{{int(found['open'] == '+')},{MAX_REPETITIONS}}}"
        return f"{{{found['least']},{max(MAX_REPETITIONS, int(found['least']))}}}" if found["least"] else found[0]

    return (_ANCHORED_QUANTIFIER if pattern.startswith("^") else _UNANCHORED_QUANTIFIER).sub(limit, pattern)


TextSpan = tuple[int, int]
"""A place in a text: the index of its first character, and of the character after its last."""

_NAME_TOKEN = re.compile(r"[A-Za-z0-9]+|[^\x00-\x7f]")
"""A token; a name is found by its first token. Each character beyond ASCII is a token of its own, since scripts without
spaces write a name right behind another word."""


def is_inside_word(text: str, at: int, joins: str = "") -> bool:
    """Whether the place before character `at` is inside a word: on both of its sides stand ASCII letters, digits, or
    characters of `joins`."""
    around = text[max(0, at - 1) : at + 1]
    return len(around) == 2 and all(char.isascii() and (char.isalnum() or char in joins) for char in around)


class KnownNames:
    """Known names, in lower case, found in texts in any case. The caller judges whether a found name is a word by
    itself."""

    def __init__(self) -> None:
        self._shapes: dict[str, set[tuple[int, int]]] = {}  # by a first token: its offset in a name, the name's length

    def add(self, name: str) -> None:
        if token := _NAME_TOKEN.search(name):
            self._shapes.setdefault(token[0], set()).add((token.start(), len(name)))

    def find(self, text: str) -> Iterator[tuple[TextSpan, str]]:
        """(place, its text in lower case) for every place that may hold a known name: the caller looks the text up."""
        for token in _NAME_TOKEN.finditer(text) if self._shapes else ():
            for before, length in self._shapes.get(token[0].lower(), ()):
                start = max(0, token.start() - before)
                yield (start, start + length), text[start : start + length].lower()
