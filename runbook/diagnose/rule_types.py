"""Types of the rules over logs: a sign is a kind of line; a rule says which signs make a cause; a hit is a sign seen on
a line."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from runbook.causes.catalogue import Confidence
from runbook.model.text_search import compile_bounded

MAX_TRACEBACK_LINES = 80  # the most lines of one traceback


def joined_alternatives(told: str | list[str]) -> str:
    """A text of our tables; the alternatives of a list are joined by `|`."""
    return told if isinstance(told, str) else "|".join(told)


class Tier(IntEnum):
    """How near to the root a cause is: of two causes found together, the one with the lower tier explains the other."""

    FAULT = 1  # a line itself says what is wrong
    DEATH = 2  # a process was killed, or crashed
    PROGRAM = 3  # the program raised an error
    NETWORK = 4  # connections failed, and no line says why
    SYMPTOM = 5  # other processes report a failure that they only see
    ABORT = 6  # a process ended itself after it had noticed a failure
    NOTE = 7  # the job is slower than it could be, not broken
    WRAPPER = 8  # lines say that something failed, and not what


@dataclass(frozen=True, slots=True)
class Sign:
    """A kind of line: `pattern` is searched on lines that hold one of `keys` ("a|b": lower case, no digits). Without a
    pattern, a key is enough."""

    name: str
    keys: str
    pattern: str | None = None
    keep: int = 40  # hits kept of each source: half of them the first, half the last

    @property
    def literals(self) -> tuple[str, ...]:
        """The alternatives of `keys`."""
        return tuple(self.keys.split("|"))

    def compiled(self) -> re.Pattern[str] | None:
        """The pattern, compiled when it is first needed."""
        return _compile_pattern(self.pattern) if self.pattern else None


@functools.cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    """The compiled pattern. Patterns are compiled one by one, when a line may match: most logs need few of the
    hundreds, and to compile all takes half a second."""
    return compile_bounded(pattern, re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: `cause` holds if at least one of `signs` was seen, all of `needs`, and none of `unless`. `says` is its
    sentence, with holes for groups of its signs."""

    cause: str
    says: str
    signs: tuple[Sign | str, ...]
    needs: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    tier: Tier = Tier.FAULT
    confidence: Confidence = "high"
    way: str = ""  # which remedy of the cause's page

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `signs`."""
        return tuple(sign if isinstance(sign, str) else sign.name for sign in self.signs)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log: its place, and its speaker and time as far as known. `text` is without prefixes, `shown` is the
    line as it is quoted."""

    source: str
    number: int
    text: str
    shown: str
    rank: int | None = None
    node: str | None = None
    when: float | None = None  # seconds since its clock began
    period: float = 0.0  # seconds after which its clock begins again; 0: the clock tells the year

    @property
    def who(self) -> str:
        """The speaker's name: the rank if it is known, else the node, else the source."""
        return f"rank {self.rank}" if self.rank is not None else self.node or self.source

    @property
    def voice(self) -> tuple[str, str]:
        """The source and the speaker."""
        return self.source, self.who

    @property
    def place(self) -> tuple[str, int]:
        return self.source, self.number


@dataclass(frozen=True, slots=True)
class Hit:
    """A sign that was seen on a line; `groups` are the texts that its pattern found, by name."""

    sign: str
    line: Line
    groups: Mapping[str, str] = field(default_factory=dict)


LineNumbers = Mapping[tuple[str, str], Sequence[int]]
"""Numbers of lines, by source and speaker."""


def line_numbers(hits: Sequence[Hit]) -> LineNumbers:
    """The numbers of the hits' lines, in the order of the hits."""
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for hit in hits:
        numbers[hit.line.voice].append(hit.line.number)
    return numbers


def has_line_above(hit: Hit, numbers: LineNumbers, most: int) -> bool:
    """Whether one of these lines of the same speaker stands at most `most` lines above the hit."""
    return any(0 < hit.line.number - at <= most for at in numbers.get(hit.line.voice, ()))
