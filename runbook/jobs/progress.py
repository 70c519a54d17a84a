"""How far has a training come, and is it slower than it was in its own first minutes?

Steps are the numbers that ranks print, or write into the file that RUNBOOK_PROGRESS names. Speed is measured by the
durations of steps, weighted by steps, at the first quartile and at the median. So pauses for an evaluation or a
checkpoint, first steps that compile, and steps of different length have no effect, however long they last, as long as
their share of the steps stays the same.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from runbook.model.playbook import DEFAULT_BASELINE_S, Watch
from runbook.node.proc import digits_as_integer
from runbook.node.training_steps import (
    UNSTARTED_BAR,
    USUAL_STEP_PATTERN,
    epoch_in_line,
    step_in_line,
)

MIN_SPEED_LOSS = 0.2
"""The least part of its speed that a training has to lose before it is reported."""

RECENT_BASELINE_SHARE = 0.5
"""The recent speed is measured over this part of the baseline's time."""

MIN_TIMING_S = 1.0
"""The least seconds over which steps are timed: lines arrive in bundles."""

MIN_TIMINGS = 10
"""The least number of timings from which a speed is computed."""

MAX_TIMINGS = 4096
"""The most timings that are remembered of the baseline, and of the time after it."""
MAX_TIME_PARTS = 1000
"""The most parts of the time that are remembered."""

Timing = tuple[float, float, int]
"""The time at which the timed steps ended, the seconds a step, and the number of steps."""


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Seconds a step in the first minutes, and recently. `at_once`: at least half of the change came within a few
    minutes; otherwise it came gradually, as it does when the steps themselves become longer."""

    before_s: float
    now_s: float
    at_once: bool

    @property
    def lost(self) -> float:
        """The part of the speed that was lost, from 0 to 1."""
        return 1.0 - self.before_s / self.now_s


class StepTimes:
    """The timings of one training's steps. All times are seconds of one clock."""

    def __init__(self, baseline_s: float = DEFAULT_BASELINE_S) -> None:
        self.baseline_s = baseline_s
        self._recent_s = baseline_s * RECENT_BASELINE_SHARE
        self._lock = threading.Lock()
        self._anchor: tuple[float, int] | None = None
        self._begun = 0.0
        self._early: list[Timing] = []
        self._late: deque[Timing] = deque(maxlen=MAX_TIMINGS)
        self._parts: list[tuple[float, float]] = []  # for each part of the time: its end, and its median seconds a step

    def reached(self, now: float, step: int) -> None:
        """Notes that the job reached this step. A step before the last one, as after a restart from a checkpoint, is a
        new beginning."""
        with self._lock:
            if self._anchor is None:
                self._anchor, self._begun = (now, step), now
                return
            at, was = self._anchor
            if step < was:
                self._anchor = (now, step)
            elif step > was and now - at >= MIN_TIMING_S:
                self._anchor = (now, step)
                self._timed((now, (now - at) / (step - was), step - was))

    def begin_again(self, now: float, step: int) -> None:
        """Starts timing anew at this step: the time since the step before says nothing."""
        with self._lock:
            self._anchor = (now, step)

    def _timed(self, timing: Timing) -> None:
        """Stores a timing: of the baseline, or of the time after it."""
        early = timing[0] - self._begun <= self.baseline_s or len(self._early) < MIN_TIMINGS
        if early and len(self._early) < MAX_TIMINGS:
            self._early.append(timing)
        else:
            self._late.append(timing)
        part_s = self._recent_s / 5
        if not self._parts or timing[0] - self._parts[-1][0] >= part_s:
            since = self._parts[-1][0] if self._parts else self._begun
            here = [one for one in (*self._early[-MIN_TIMINGS * 20 :], *self._late) if since < one[0]]
            self._parts = [*self._parts[-MAX_TIME_PARTS:], (timing[0], step_time_quantile(here, 0.5))]

    def age_s(self, now: float) -> float:
        """Seconds since the first step; 0 before it."""
        return now - self._begun if self._anchor else 0.0

    def slower(self, now: float) -> Slowdown | None:
        """The slowdown, if at least MIN_SPEED_LOSS of the speed was lost; None also if too little is known."""
        with self._lock:
            if self._anchor is None or now - self._begun < self.baseline_s + self._recent_s:
                return None
            recent = [one for one in self._late if one[0] > now - self._recent_s]
            if len(recent) < MIN_TIMINGS:
                recent = list(self._late)[-MIN_TIMINGS:]
            if len(self._early) < MIN_TIMINGS or len(recent) < MIN_TIMINGS:
                return None
            pairs = [
                (step_time_quantile(self._early, share), step_time_quantile(recent, share)) for share in (0.25, 0.5)
            ]
            if any(before > after * (1 - MIN_SPEED_LOSS) for before, after in pairs):
                return None
            before, after = pairs[1]
            return Slowdown(before, after, at_once([one for _, one in self._parts], after / before))


def step_time_quantile(timings: Iterable[Timing], share: float) -> float:
    """The seconds a step at this quantile of all steps."""
    ordered = sorted((seconds, steps) for _, seconds, steps in timings)
    wanted = share * sum(steps for _, steps in ordered)
    passed = 0
    for seconds, steps in ordered:
        passed += steps
        if passed >= wanted:
            return seconds
    return ordered[-1][0] if ordered else math.nan


def at_once(seconds: Sequence[float], whole: float) -> bool:
    """Whether at least half of the slowing down by the factor `whole` lies between two neighbouring groups of three
    parts. `seconds`: the seconds a step in each part of the time."""
    steepest = max(
        (_median(seconds[at : at + 3]) / _median(seconds[at - 3 : at]) for at in range(3, len(seconds) - 2)),
        default=1.0,
    )
    return steepest >= math.sqrt(whole)


def _median(seconds: Sequence[float]) -> float:
    """The median."""
    return sorted(seconds)[len(seconds) // 2]


MIN_LEARNED_STALL_S = 60.0
"""The least seconds without a step that are a stall where the limit is learned."""
MIN_FIRST_STEP_STALL_S = 600.0
"""The least seconds without a step that are a stall before or during the first step: a model is loaded and compiled
then."""

MAX_SECOND_STEP_FACTOR = 2
"""The second step may take this many times as long as everything before the first count."""

STALL_SILENCE_FACTOR = 10
"""A silence this many times as long as the longest between two counts is a stall."""
MIN_RATE_SPAN_S = 1.0
"""The least seconds over which a rate is computed: lines arrive in bundles."""

MAX_RATE_STEPS = 200
"""The most steps from which a rate is computed."""


@dataclass(frozen=True, slots=True)
class StepRate:
    """How far a job has come, and how fast it is. `step`: the highest of any rank. `age_s`: seconds since a rank last
    came further. `per_s`: units a second, None until two steps are known. `unit`: `step`, or `epoch` if the program
    prints no steps."""

    step: float
    age_s: float
    per_s: float | None
    unit: str = "step"

    @property
    def place(self) -> str:
        """In words, how far the job has come."""
        return f"{self.unit} {self.step:,}"

    def __str__(self) -> str:
        speed = (
            ""
            if self.per_s is None
            else f", {self.per_s:.3g} {self.unit}s/s"
            if self.per_s >= 0.1
            else f", {1 / self.per_s:.1f} s a{'n' * (self.unit == 'epoch')} {self.unit}"
        )
        return f"{self.place}{speed}"


class StepProgress:
    """The steps of one attempt. Times are on the monotonic clock; any thread may call any method.

    A count lower than the highest is progress as well: of an evaluation, of the next epoch, or after a checkpoint. If
    no higher count comes for `_learned_s` (a minute or more), the lower one becomes the count of the training."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._pattern = watch.progress or USUAL_STEP_PATTERN
        self._lock = threading.Lock()
        self._last = math.inf  # when a rank last came further; infinite until all ranks have been started
        self._begun = math.inf  # when watching began, after all ranks had been started
        self._age_s = 0.0  # seconds for which the ranks had run before `_begun`
        self._first_s = 0.0  # seconds from `_begun` to the first count
        self._longest_s = 0.0  # the longest seconds between two counts
        self._counts = 0
        self._late = False  # whether any of these counts arrived later than it was printed
        self._reported = False  # whether this stall was reported; reset when a rank comes further
        self._allowed_s = 0.0  # a silence that is no longer than this is no stall; reset when a rank comes further
        self._unit = "step"
        self._steps: deque[tuple[float, float]] = deque(
            maxlen=MAX_RATE_STEPS
        )  # of the whole job: times and highest steps
        self._before = math.inf  # the highest step of the count that a lower one has replaced
        self._latest: dict[int | None, float] = {}  # the last step by rank; None for the output of several ranks
        self.step_times = StepTimes(watch.baseline_s)

    @property
    def by_rank(self) -> dict[int, float]:
        """The last step of every rank that reports its own."""
        return {rank: step for rank, step in self._latest.copy().items() if rank is not None}

    def begin(self, age_s: float = 0.0) -> None:
        """Notes that all ranks were started `age_s` seconds ago: from now on silence counts."""
        with self._lock:
            self._last = self._begun = time.monotonic()
            self._age_s = age_s

    def heard(self, rank: int | None, lines: Iterable[str], *, late: bool = False) -> None:
        """Takes lines that a rank printed; `rank` is None for the output of several ranks. `late`: the lines were
        printed before anybody listened and arrive all at once, so they show how far the job is, but not how fast."""
        for line in lines:
            step = step_in_line(line, self._pattern)
            if step == 0 and not self._steps and UNSTARTED_BAR.search(line):
                continue  # a bar that is drawn before the first step, which may be as long as an epoch
            if step is not None:
                self.reached(rank, step, late=late)
            elif self._pattern is USUAL_STEP_PATTERN and (passed := epoch_in_line(line)) is not None:
                self._passed(rank, passed, late=late)

    def written(self, steps: Mapping[str, str], ranks: Mapping[str, int | None], *, late: bool = False) -> None:
        """Takes the contents of step files, by the names of the processes. `ranks`: by the same names, the rank.
        `late`: as in `heard`."""
        for name, text in steps.items():
            step = digits_as_integer(text)
            if step is not None and name in ranks:
                self.reached(ranks[name], step, late=late)
                # A step file holds only the last step: the steps before it were counts that did not arrive.
                self._counts = max(self._counts, step) if late else self._counts

    def reached(self, rank: int | None, step: int, *, late: bool = False) -> None:
        """Notes that a rank reached this step; `late` as in `heard`."""
        now = time.monotonic()
        with self._lock:
            if self._unit != "step":
                self._unit = "step"
                self._latest.clear()
                self._steps.clear()
            further = step > self._latest.get(rank, -1)
            self._latest[rank] = step
            newest = not self._steps or step > self._steps[-1][1]
            if newest:
                self._count(now, step, late=late)
            elif further and now - self._steps[-1][0] > self._learned_s:
                self._before = self._steps[-1][1]
                self._steps.clear()
                self._count(now, step, late=late)
            if newest or further:
                self._came_further(now)

    def _count(self, now: float, step: int, *, late: bool) -> None:
        """Notes a new highest step of the job, or a lower one that is the count of the training from now on."""
        self._counted(now, late=late)
        if late:
            self.step_times.begin_again(now, step)
        if step > self._before:  # the lower count was a long evaluation, and not the next epoch
            self._before = math.inf
            self._steps.clear()
            self.step_times.begin_again(now, step)
        self._steps.append((now, step))
        self.step_times.reached(now, step)

    def _passed(self, rank: int | None, epochs: float, *, late: bool) -> None:
        """Takes a number of epochs that a rank printed. The number is rounded, so each such line is progress even if
        the number is the same as before."""
        now = time.monotonic()
        with self._lock:
            if self._unit == "step" and self._steps:
                return
            self._unit = "epoch"
            self._latest[rank] = epochs
            self._counted(now, late=late)
            self._came_further(now)
            if not self._steps or epochs > self._steps[-1][1]:
                self._steps.append((now, epochs))

    def _came_further(self, now: float) -> None:
        self._last, self._reported, self._allowed_s = now, False, 0.0

    def _counted(self, now: float, *, late: bool) -> None:
        """Learns the usual time between counts from this one, unless it came `late`."""
        self._counts += 1
        if late:
            self._late = True
            self._steps.clear()
        elif self._steps:
            self._longest_s = max(self._longest_s, now - self._last)
        else:
            self._first_s = self._first_s or max(0.0, now - self._begun)

    def rate(self) -> StepRate | None:
        """The step and the rate of the job; None until a step is known."""
        with self._lock:
            if not self._steps:
                return None
            (first, low), (last, high) = self._steps[0], self._steps[-1]
            per_s = (high - low) / (last - first) if last - first > MIN_RATE_SPAN_S else None
            return StepRate(high, time.monotonic() - self._last, per_s, self._unit)

    def stalled_s(self, heard_until: float) -> float | None:
        """The seconds for which no rank has come further, if they exceed the limit of a stall; else None.
        `heard_until`: the time up to which the ranks' reports are known."""
        with self._lock:
            limit = None if self._reported else self._limit_s()
            idle_s = heard_until - self._last
        return idle_s if limit is not None and idle_s > max(limit, self._allowed_s) else None

    def unheard_s(self, heard_until: float) -> float | None:
        """The seconds for which all ranks have run without any step, if the limit of a stall has to be learned from
        steps (`stall: auto`); None if the limit is given or a step was heard."""
        with self._lock:
            if self._watch.stall_s is not None or self._steps:
                return None
            return heard_until - self._begun + self._age_s

    def allow(self, seconds: float) -> None:
        """Lets a silence of so many seconds pass: the rank that the others wait for was seen to work."""
        with self._lock:
            self._allowed_s = seconds

    def stall_reported(self) -> None:
        """Notes that this stall was reported: it is not reported again until a rank comes further."""
        with self._lock:
            self._reported = True

    @property
    def _learned_s(self) -> float:
        """The seconds without a step that are a stall, learned from the steps so far."""
        return max(MIN_LEARNED_STALL_S, STALL_SILENCE_FACTOR * max(self._longest_s, self._mean_s))

    @property
    def _mean_s(self) -> float:
        """The average seconds between counts, if some came late, so that the longest is not known; else 0."""
        return self._age_s / self._counts if self._late else 0.0

    def _limit_s(self) -> float | None:
        """The seconds without a step that are a stall; None if no limit is known."""
        if self._watch.stall_s is not None:
            return self._watch.stall_s if self._steps else max(MIN_FIRST_STEP_STALL_S, self._watch.stall_s)
        if not self._steps:
            return None
        if self._longest_s:
            return self._learned_s
        return max(
            MIN_FIRST_STEP_STALL_S, MAX_SECOND_STEP_FACTOR * self._first_s, self._learned_s
        )  # the first step may be compiled
