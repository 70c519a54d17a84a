"""The result of reading one output of a tool: the faults that it proves, and the causes that it explains."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runbook.causes.catalogue import Confidence


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong by itself. `lines` prove it; they count from 1 in the text that was read."""

    cause: str
    says: str
    remedy: str
    lines: tuple[int, ...]
    confidence: Confidence = "high"


@dataclass(frozen=True, slots=True)
class Support:
    """Support for a cause that logs show, which is not a fault by itself.

    `about` is a word, `ports` a range that the log's lines must name for it to count; without them it always does.
    """

    causes: tuple[str, ...]
    says: str
    lines: tuple[int, ...]
    remedy: str = ""
    about: str = ""
    ports: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """`unknown` says why this proves no health: it is cut, in another language, of an unknown version."""

    tool: str
    faults: tuple[Fault, ...] = ()
    supports: tuple[Support, ...] = ()
    unknown: str = ""

    @property
    def healthy(self) -> bool:
        return not self.faults and not self.unknown


@dataclass(frozen=True, slots=True)
class Tool:
    """How an output is recognised, and what reads it.

    `command` matches the words that were typed; `start` the line that its output begins with, `line` any line of it
    (both are matched from a line's first column). `keys`: a text without any of them holds no `start`. `log`: what it
    prints is a log, which is read as one besides.
    """

    name: str
    command: str
    start: str
    line: str
    keys: tuple[str, ...]
    read: Callable[[str], Reading | None]
    log: bool = False


def numbered(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, from 1."""
    return enumerate(text.splitlines(), 1)


def fields(text: str, separator: str = ":") -> dict[str, tuple[str, int]]:
    """`name : value` lines: the first value of each name, and its line."""
    found: dict[str, tuple[str, int]] = {}
    for at, line in numbered(text):
        name, mark, value = line.partition(separator)
        if mark and name.strip():
            found.setdefault(name.strip(), (value.strip(), at))
    return found


def number(text: str) -> float | None:
    """The number that a text begins with."""
    found = re.match(r"\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text)
    return float(found[1]) if found else None


def yes(text: str | None) -> bool | None:
    """`yes`, `True`, `active`, `on`: true; their contraries: false; anything else is not known."""
    word = (text or "").strip().lower()
    return (
        True
        if word in ("yes", "true", "on", "active")
        else False
        if word in ("no", "false", "off", "inactive")
        else None
    )


def some(items: list[str], most: int = 6) -> str:
    """A few of them, for a sentence."""
    return ", ".join(items[:most]) + (f" and {len(items) - most} more" if len(items) > most else "")


CUT = "it is cut, or of a version that is not known here"
