"""Whether a training has become slower than it was in its own first minutes. Pure: it is fed with times and steps.

A speed is told by how long single steps take, weighted by steps, at the first quartile and at the median: so pauses for an
evaluation or a checkpoint, the first steps with their compiling, and steps of different length do not count, however long they
last, as long as there are as many of them as before.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LOST = 0.2
"""So large a part of its speed is told of a training."""

BASELINE_S = 600.0
"""So long after its first step a training is what it is compared with later."""

RECENT = 0.5
"""The part of that time which is looked at for its speed of late."""

LEAST_S = 1.0
"""Lines come here in bundles: over less than this no step is timed."""

LEAST = 10
"""So many timings a speed is told from, at least."""

REMEMBERED = 4096
MOST_PARTS = 1000

Timing = tuple[float, float, int]
"""When it ended, how long a step took, and how many steps it is of."""


@dataclass(frozen=True, slots=True)
class Slower:
    """Seconds a step in the first minutes, and of late. `at_once`: most of it came within a few minutes; else it came by and by,
    as it does where the steps themselves grow."""

    before_s: float
    now_s: float
    at_once: bool

    @property
    def lost(self) -> float:
        """The part of the speed that is lost."""
        return 1.0 - self.before_s / self.now_s


class Paces:
    """What is remembered of one training. Times are of one clock, in seconds."""

    def __init__(self, baseline_s: float = BASELINE_S) -> None:
        self.baseline_s = baseline_s
        self._recent_s = baseline_s * RECENT
        self._lock = threading.Lock()
        self._anchor: tuple[float, int] | None = None
        self._begun = 0.0
        self._early: list[Timing] = []
        self._late: deque[Timing] = deque(maxlen=REMEMBERED)
        self._parts: list[tuple[float, float]] = []  # when a part of it ended, and how long a step took in it

    def reached(self, now: float, step: int) -> None:
        """The job came to this step. An earlier one than before, after a restart from a checkpoint, is a new beginning."""
        with self._lock:
            if self._anchor is None:
                self._anchor, self._begun = (now, step), now
                return
            at, was = self._anchor
            if step < was:
                self._anchor = (now, step)
            elif step > was and now - at >= LEAST_S:
                self._anchor = (now, step)
                self._timed((now, (now - at) / (step - was), step - was))

    def _timed(self, timing: Timing) -> None:
        early = timing[0] - self._begun <= self.baseline_s or len(self._early) < LEAST
        if early and len(self._early) < REMEMBERED:
            self._early.append(timing)
        else:
            self._late.append(timing)
        part_s = self._recent_s / 5
        if not self._parts or timing[0] - self._parts[-1][0] >= part_s:
            since = self._parts[-1][0] if self._parts else self._begun
            here = [one for one in (*self._early[-LEAST * 20 :], *self._late) if since < one[0]]
            self._parts = [*self._parts[-MOST_PARTS:], (timing[0], quantile(here, 0.5))]

    def age_s(self, now: float) -> float:
        """How long ago the first step was."""
        return now - self._begun if self._anchor else 0.0

    def slower(self, now: float) -> Slower | None:
        """Whether it is, by LOST; None also where too little is known."""
        with self._lock:
            if self._anchor is None or now - self._begun < self.baseline_s + self._recent_s:
                return None
            recent = [one for one in self._late if one[0] > now - self._recent_s]
            if len(recent) < LEAST:
                recent = list(self._late)[-LEAST:]
            if len(self._early) < LEAST or len(recent) < LEAST:
                return None
            pairs = [(quantile(self._early, share), quantile(recent, share)) for share in (0.25, 0.5)]
            if any(before > after * (1 - LOST) for before, after in pairs):
                return None
            before, after = pairs[1]
            return Slower(before, after, at_once([pace for _, pace in self._parts], after / before))


def quantile(timings: Iterable[Timing], share: float) -> float:
    """Seconds a step, that this share of all steps did not take."""
    ordered = sorted((seconds, steps) for _, seconds, steps in timings)
    wanted = share * sum(steps for _, steps in ordered)
    passed = 0
    for seconds, steps in ordered:
        passed += steps
        if passed >= wanted:
            return seconds
    return ordered[-1][0] if ordered else math.nan


def at_once(paces: Sequence[float], whole: float) -> bool:
    """Whether half of the slowing down by the factor `whole`, or more, lies between two neighbouring parts of three each."""
    steepest = max(
        (_middle(paces[at : at + 3]) / _middle(paces[at - 3 : at]) for at in range(3, len(paces) - 2)), default=1.0
    )
    return steepest >= math.sqrt(whole)


def _middle(paces: Sequence[float]) -> float:
    return sorted(paces)[len(paces) // 2]
