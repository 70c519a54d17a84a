"""The nearest known word to one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(word: str, known: Iterable[str]) -> str | None:
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[close[0]] if close else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A help sentence: the nearest word, or else the known ones if there are few."""
    names = list(known)
    near = nearest(word, names[:5000])  # difflib takes 20 microseconds a name
    if near is not None:
        return f"did you mean `{near}`?"
    return known_here(names)


def known_here(names: Sequence[str]) -> str | None:
    """A help sentence that lists all names, if they are few."""
    return "known here: " + ", ".join(names) if 0 < len(names) <= 20 else None
