"""The type that readers of tools' outputs give: the faults that an output proves, and the causes that it explains. Also
what the readers share: lines with numbers, fields, numbers, and yes or no."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from runbook.causes.catalogue import Confidence, remedy_from_page

CUT_OR_UNKNOWN = "it is cut, or of a version that is not known here"
"""The reason, as `Reading.unknown` gives it, of an output that is not wholly understood."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that an output proves without any log. `lines` prove it; they count from 1 in the text that was read."""

    cause: str
    says: str
    remedy: str
    lines: tuple[int, ...]
    confidence: Confidence


@dataclass(frozen=True, slots=True)
class Support:
    """A fact that is no fault by itself, but explains causes that logs show.

    It counts only if the log's lines name the word `about` or a port in the range `ports`; without both, always.
    """

    causes: tuple[str, ...]
    says: str
    lines: tuple[int, ...]
    remedy: str
    about: str = ""
    ports: tuple[int, int] | None = None


@dataclass(slots=True)
class Reading:
    """The result of reading one output. `unknown` says in words why it does not prove that all is well, such as being
    cut, in another language, or of an unknown version; empty if it does. The caller, which knows it, sets `tool`."""

    unknown: str = ""
    tool: str = ""
    faults: list[Fault] = field(default_factory=list)
    supports: list[Support] = field(default_factory=list)

    @classmethod
    def of(cls, whole: bool) -> Reading:
        """A reading without faults. `whole`: every line was understood, and none is missing."""
        return cls("" if whole else CUT_OR_UNKNOWN)

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
        """Adds a fault, with the remedy `way` from its cause's page; `fields` are the values of that template's
        fields."""
        self.faults.append(Fault(cause, says, remedy_from_page(cause, way, **fields), tuple(lines), confidence))

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
        """Adds support for `cause` and for the causes `also`, with the remedy `way` from the page of `cause`. Without a
        `way` the causes keep their own remedies."""
        remedy = remedy_from_page(cause, way, **fields) if way else ""
        self.supports.append(Support((cause, *also), says, tuple(lines), remedy, about, ports))


def numbered_lines(text: str) -> Iterator[tuple[int, str]]:
    """The text's lines with their numbers, from 1."""
    return enumerate(text.splitlines(), 1)


def fields_by_name(text: str, separator: str = ":") -> dict[str, tuple[str, int]]:
    """By the name in each line `name : value`, the first value and the number of its line."""
    found: dict[str, tuple[str, int]] = {}
    for at, line in numbered_lines(text):
        name, mark, value = line.partition(separator)
        if mark and name.strip():
            found.setdefault(name.strip(), (value.strip(), at))
    return found


def leading_number(text: str) -> float | None:
    """The number that a text begins with; None if it begins with none."""
    found = re.match(r"\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", text)
    return float(found[1]) if found else None


def parse_yes_no(text: str | None) -> bool | None:
    """True for `yes`, `True`, `active` and `on`; False for their opposites; None for any other text."""
    word = (text or "").strip().lower()
    if word in ("yes", "true", "on", "active"):
        return True
    return False if word in ("no", "false", "off", "inactive") else None
