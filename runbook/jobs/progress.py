"""How far a training came: the numbers of steps that its ranks print, or write into the file that RUNBOOK_PROGRESS names."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.jobs.pace import Paces
from runbook.launch.job import Watch
from runbook.node.steps import USUAL, number, step_in

LEAST_STALL_S = 60.0
BEFORE_FIRST_S = 600.0
"""Before the first step a model is loaded and compiled: no less than this is a stall there."""

TIMES_LONGEST = 10
SHORTEST_S = 1.0
"""Lines come here in bundles: over less than this no speed is told."""

REMEMBERED = 200
"""Steps from which the speed is told."""


@dataclass(frozen=True, slots=True)
class StepRate:
    """`step` is the highest of any rank; `age_s` is how long ago somebody came further; `per_s` is None until two steps are known."""

    step: int
    age_s: float
    per_s: float | None

    def __str__(self) -> str:
        speed = (
            ""
            if self.per_s is None
            else f", {self.per_s:.3g} steps/s"
            if self.per_s >= 0.1
            else f", {1 / self.per_s:.1f} s a step"
        )
        return f"step {self.step:,}{speed}"


class StepProgress:
    """The steps of one attempt. Times are on the monotonic clock; any thread may tell what it heard."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._pattern = watch.progress or USUAL
        self._lock = threading.Lock()
        self._last = math.inf  # when somebody came further; nobody can before all have been started
        self._longest_s = 0.0
        self._told = False  # a stall is told once, until somebody comes further
        self._steps: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)  # of the whole job
        self.paces = Paces(watch.baseline_s)
        self.by_rank: dict[int, int] = {}
        """The step of every rank that tells its own."""

    def begin(self) -> None:
        """All ranks have been started: from now on silence counts."""
        with self._lock:
            self._last = time.monotonic()

    def heard(self, rank: int | None, lines: Iterable[str]) -> None:
        """Lines that a rank printed; None for what speaks for several."""
        for line in lines:
            step = step_in(line, self._pattern)
            if step is not None:
                self.reached(rank, step)

    def told(self, steps: Mapping[str, str], ranks: Mapping[str, int | None]) -> None:
        """What stands in the files of processes, by their names."""
        for name, text in steps.items():
            step = number(text)
            if step is not None and name in ranks:
                self.reached(ranks[name], step)

    def reached(self, rank: int | None, step: int) -> None:
        now = time.monotonic()
        with self._lock:
            if rank is not None:
                further = step > self.by_rank.get(rank, -1)
                self.by_rank[rank] = step
            else:
                further = not self._steps
            newest = not self._steps or step > self._steps[-1][1]
            if newest:
                if self._steps:
                    self._longest_s = max(self._longest_s, now - self._last)
                self._steps.append((now, step))
                self.paces.reached(now, step)
            if newest or further:
                self._last, self._told = now, False

    def pace(self) -> StepRate | None:
        """None until a step is known."""
        with self._lock:
            if not self._steps:
                return None
            (first, low), (last, high) = self._steps[0], self._steps[-1]
            per_s = (high - low) / (last - first) if last - first > SHORTEST_S else None
            return StepRate(high, time.monotonic() - self._last, per_s)

    def stalled_s(self) -> float | None:
        """How long nobody has come further, where that is longer than it may be."""
        with self._lock:
            limit = None if self._told else self._limit_s()
            idle_s = time.monotonic() - self._last
        return idle_s if limit is not None and idle_s > limit else None

    def stall_told(self) -> None:
        with self._lock:
            self._told = True

    def _limit_s(self) -> float | None:
        if self._watch.stall_s is not None:
            return self._watch.stall_s if self._steps else max(BEFORE_FIRST_S, self._watch.stall_s)
        return max(LEAST_STALL_S, TIMES_LONGEST * self._longest_s) if self._steps else None
