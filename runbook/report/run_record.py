"""Builds the record of a run from its events so far: stages, outcomes, findings, measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar

from runbook.model.events import (
    Event,
    NodesDropped,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.verdict import Outcome, Verdict, overall_verdict


@dataclass(slots=True)
class StageRecord:
    """One stage: its start, its outcomes so far, and its end, if it ended."""

    started: StageStarted
    reached: list[OutcomeReached] = field(default_factory=list)
    finished: StageFinished | None = None

    @property
    def name(self) -> str:
        return self.started.stage

    @property
    def outcomes(self) -> list[Outcome]:
        return [event.outcome for event in self.reached]

    @property
    def silent(self) -> list[str]:
        """The nodes that have not answered (yet)."""
        answered = {outcome.node for outcome in self.outcomes}
        return [node for node in self.started.nodes if node not in answered]

    @property
    def verdict(self) -> Verdict:
        """The engine's verdict; a stage that never finished is `unknown`, unless some node already failed."""
        if self.finished:
            return self.finished.verdict
        return overall_verdict([Verdict.UNKNOWN, *(outcome.verdict for outcome in self.outcomes)])


@dataclass(slots=True)
class Record:
    """A reader that only keeps the events that it gets. Two stages may have one name: an event belongs to the latest
    stage of its name."""

    started: RunStarted | None = None
    finished: RunFinished | None = None
    stages: list[StageRecord] = field(default_factory=list)
    drops: list[NodesDropped] = field(default_factory=list)
    first_time: float | None = None
    last_time: float = 0.0
    _latest: dict[str, StageRecord] = field(default_factory=dict)  # by name

    def __call__(self, event: Event) -> None:
        self.first_time = event.time if self.first_time is None else self.first_time
        self.last_time = max(self.last_time, event.time)
        match event:
            case RunStarted():
                self.started = event
            case StageStarted():
                self._begin(event)
            case OutcomeReached():
                self.stage(event.stage, event.time).reached.append(event)
            case StageFinished():
                self.stage(event.stage, event.time).finished = event
            case NodesDropped():
                self.drops.append(event)
            case RunFinished():
                self.finished = event
            case Progress():
                pass
            case _:
                assert_never(event)

    def stage(self, name: str, time: float = 0.0) -> StageRecord:
        """The latest stage of that name; one that was never announced is entered now."""
        return self._latest.get(name) or self._begin(StageStarted(time, name, "", ()))

    def _begin(self, event: StageStarted) -> StageRecord:
        stage = self._latest[event.stage] = StageRecord(event)
        self.stages.append(stage)
        return stage

    @property
    def open_stage(self) -> StageRecord | None:
        """The stage under way; None if there is none."""
        return self.stages[-1] if self.stages and not self.stages[-1].finished else None

    @property
    def dropped(self) -> tuple[str, ...]:
        """The nodes that the run went on without, in the order in which they were dropped."""
        return tuple(name for drop in self.drops for name in drop.reasons)

    @property
    def not_run(self) -> list[str]:
        """The stages that were planned and never begun, in their order."""
        begun = Counter(stage.name for stage in self.stages)
        return list(_names_not_begun(self.started.stages if self.started else (), begun))

    @property
    def seconds(self) -> float:
        if self.finished:
            return self.finished.seconds
        return max(0.0, self.last_time - (self.first_time or 0.0))

    @property
    def causes(self) -> list[str]:
        """The causes in the engine's order, the root first; before the run has ended, in the order in which they were
        found."""
        if self.finished:
            return list(self.finished.causes)
        found = (finding.cause for stage in self.stages for outcome in stage.outcomes for finding in outcome.findings)
        return list(dict.fromkeys(found))

    @property
    def stopped_at(self) -> str | None:
        if self.finished:
            return self.finished.stopped_at
        if self.open_stage:
            return self.open_stage.name
        return next((stage.name for stage in reversed(self.stages) if stage.verdict.stops), None)


def _names_not_begun(names: Iterable[str], begun: Counter[str]) -> Iterator[str]:
    for name in names:
        if begun[name]:
            begun[name] -= 1
        else:
            yield name


def record_of_events(events: Iterable[Event]) -> Record:
    record = Record()
    for event in events:
        record(event)
    return record


def assert_never(value: NoReturn) -> NoReturn:
    """Stands in the last `case _:`, so that a new Event fails mypy in every reader."""
    raise AssertionError(f"a report met something it does not know: {value!r}")


NodePair = tuple[str, str]
"""The names of the node that sends and of the node that receives over a link."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Gbit/s one way and both ways at once, and microseconds there and back; None if it is not known."""

    gbps: float
    us: float | None
    both_gbps: float | None


def fastest_links(outcomes: Iterable[Outcome]) -> dict[NodePair, LinkSpeed]:
    """The fastest measurement of each direction by `check: links`."""
    best: dict[NodePair, LinkSpeed] = {}
    for outcome in outcomes:
        listed = outcome.metrics.get("links")
        for one in listed if isinstance(listed, list | tuple) else ():
            if not isinstance(one, Mapping):
                continue
            source, target, gbps = one.get("from"), one.get("to"), finite_number(one.get("gbps"))
            if not isinstance(source, str) or not isinstance(target, str) or gbps is None or not 0 < gbps < 1e9:
                continue
            known = best.get((source, target))
            if known is None or gbps > known.gbps:
                best[source, target] = LinkSpeed(
                    gbps, finite_number(one.get("us")), finite_number(one.get("both_gbps"))
                )
    return best


class WithLinkSpeed(Protocol):
    """Anything with the speed of a link, in Gbit/s."""

    @property
    def gbps(self) -> float: ...


M = TypeVar("M", bound=WithLinkSpeed)


def slowest_links_between(groups: Sequence[Sequence[str]], links: Mapping[NodePair, M]) -> dict[tuple[int, int], M]:
    """The slowest link from each group of nodes to each group, by the places of both; links of other nodes are left
    out."""
    place = {name: at for at, members in enumerate(groups) for name in members}
    found: dict[tuple[int, int], M] = {}
    for (source, target), link in sorted(links.items(), key=lambda one: one[1].gbps):
        if source in place and target in place:
            found.setdefault((place[source], place[target]), link)
    return found


def finite_number(value: object) -> float | None:
    """The value as a finite number, or None: JSON from a stranger may hold NaN, 10**400 or a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
