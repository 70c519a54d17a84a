"""The result of reading one output of a tool: the faults that it proves, and the causes that it explains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runbook.causes.catalogue import Confidence, mend

CUT = "it is cut, or of a version that is not known here"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is wrong by itself. `lines` prove it; they count from 1 in the text that was read."""

    cause: str
    says: str
    remedy: str
    lines: tuple[int, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Support:
    """Support for a cause that logs show, which is not a fault by itself.

    `about` is a word, `ports` a range that the log's lines must name for it to count; without them it always does.
    """

    causes: tuple[str, ...]
    says: str
    lines: tuple[int, ...]
    remedy: str
    about: str = ""
    ports: tuple[int, int] | None = None


@dataclass(slots=True)
class Reading:
    """`unknown` says why this proves no health: it is cut, in another language, of an unknown version.
    `tool` is set by the caller, which knows the tool."""

    unknown: str = ""
    tool: str = ""
    faults: list[Fault] = field(default_factory=list)
    supports: list[Support] = field(default_factory=list)

    @classmethod
    def of(cls, whole: bool) -> Reading:
        """`whole`: every line was read, and none is missing."""
        return cls("" if whole else CUT)

    @property
    def healthy(self) -> bool:
        return not self.faults and not self.unknown

    def proves(
        self,
        cause: str,
        says: str,
        lines: Iterable[int],
        confidence: Confidence = "high",
        *,
        way: str,
        **fields: object,
    ) -> None:
        """A fault, whose remedy stands on the page of its cause."""
        self.faults.append(Fault(cause, says, mend(cause, way, **fields), tuple(lines), confidence))

    def explains(
        self,
        cause: str,
        says: str,
        lines: Iterable[int],
        *,
        also: tuple[str, ...] = (),
        about: str = "",
        ports: tuple[int, int] | None = None,
        way: str = "",
        **fields: object,
    ) -> None:
        """A cause, and the others `also`. Without a `way` their own remedies hold."""
        remedy = mend(cause, way, **fields) if way else ""
        self.supports.append(Support((cause, *also), says, tuple(lines), remedy, about, ports))


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
    if word in ("yes", "true", "on", "active"):
        return True
    return False if word in ("no", "false", "off", "inactive") else None
