"""Types of the rules over logs: a sign is a kind of line, a rule says which signs make a cause."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from runbook.causes.catalogue import Confidence
from runbook.model.text_search import bounded


def joined(told: str | list[str]) -> str:
    """A text of our tables, or alternatives of a pattern that are written as a list."""
    return told if isinstance(told, str) else "|".join(told)


class Tier(IntEnum):
    """How near to the root a cause is: of two found together, the one with the lower tier explains the other."""

    FAULT = 1  # a line itself says what is wrong
    DEATH = 2  # a process was killed, or crashed
    PROGRAM = 3  # the program raised something
    NETWORK = 4  # connections failed, without a reason
    SYMPTOM = 5  # what the others saw of it
    ABORT = 6  # how a process ended after it had noticed
    NOTE = 7  # slower than it could be, not broken
    WRAPPER = 8  # something failed, and this is all that was printed


@dataclass(frozen=True, slots=True)
class Sign:
    """A kind of line: `pattern` is searched on lines that hold one of `keys` ("a|b": lower case, no digits)."""

    name: str
    keys: str
    pattern: str | None = None
    keep: int = 40  # hits kept a source: half of them the first, half the last

    @property
    def literals(self) -> tuple[str, ...]:
        return tuple(self.keys.split("|"))

    def compiled(self) -> re.Pattern[str] | None:
        return _compiled(self.pattern) if self.pattern else None


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Not before a line may match: most logs need few of the hundreds, and all together take half a second."""
    return bounded(pattern, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """`cause` holds when one of `signs` was seen, all of `needs`, and none of `unless`; `says` may use their groups."""

    cause: str
    says: str
    signs: tuple[Sign | str, ...]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    tier: Tier = Tier.FAULT
    confidence: Confidence = "high"
    way: str = ""  # of the remedies on the cause's page

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sign if isinstance(sign, str) else sign.name for sign in self.signs)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: its place, who printed it and when, as far as it says; `text` is without prefixes."""

    source: str
    number: int
    text: str
    shown: str
    rank: int | None = None
    node: str | None = None
    when: float | None = None  # seconds, by a clock that begins again after `period`; 0: it tells the year
    period: float = 0.0

    @property
    def who(self) -> str:
        """The process, as well as the line tells: ranks before nodes before files."""
        return f"rank {self.rank}" if self.rank is not None else self.node or self.source

    @property
    def voice(self) -> tuple[str, str]:
        """The log, and who speaks there."""
        return self.source, self.who

    @property
    def place(self) -> tuple[str, int]:
        return self.source, self.number


@dataclass(frozen=True, slots=True)
class Hit:
    """A sign that was seen on a line."""

    sign: str
    line: Line
    groups: Mapping[str, str] = field(default_factory=dict)
