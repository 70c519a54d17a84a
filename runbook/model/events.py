"""The events of a run. Every report is a reader of this one stream, live or from `events.jsonl`.

`time` is seconds since the epoch. Every field is plain data, so that an event survives a trip through JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from runbook.model.verdict import Outcome, Verdict


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The start of a run, with its nodes and stages."""

    time: float
    run_id: str
    version: str
    playbook: str
    inventory: str
    nodes: tuple[str, ...]  # names, in rank order: the master first
    stages: tuple[str, ...]  # names, `reach` first
    run_dir: str
    plan: Mapping[str, object] = field(default_factory=dict)  # ranks and environment, as `launch.described` tells them
    extra: tuple[str, ...] | None = None  # names of the variables that `-e` set, as secrets may be; None in older runs


@dataclass(frozen=True, slots=True)
class StageStarted:
    """The start of a stage on its nodes."""

    time: float
    stage: str
    check: str  # id of the check, or `shell`, `launch`
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Something happened inside a stage. `data` holds values that a report may draw, such as one row of the bandwidth
    table.

    A bandwidth row is {"row": {"size": bytes, "count": elements, "type": "float", "redop": "sum", "time_us": float,
    "algbw": GB/s, "busbw": GB/s, "wrong": int, "iterations": int, "p50_us": float, "p99_us": float,
    "max_us": float}}.
    """

    time: float
    stage: str
    text: str
    node: str | None = None
    rank: int | None = None
    data: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutcomeReached:
    """What a stage concluded about one node."""

    time: float
    stage: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class StageFinished:
    """The end of a stage, with the verdict over all its nodes."""

    time: float
    stage: str
    verdict: Verdict
    seconds: float


@dataclass(frozen=True, slots=True)
class NodesDropped:
    """After `stage` the run goes on without some nodes. `reasons` gives, by a dropped node's name, the reason in words.
    Nothing is known about those in `unknown`; the others were proven bad, or lie at one end of a bad link.
    `left` are the nodes that the run goes on with, in rank order: the master first."""

    time: float
    stage: str
    reasons: Mapping[str, str]
    unknown: tuple[str, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The end of a run. `causes` holds each cause id once, the root first. Only the engine computes `exit_code`.

    `bad` nodes were proven bad; the run went on without the `dropped` nodes; a check could not look at the `unknown`
    nodes. `not_dropped`: why the run stopped although it was told to go on without its bad nodes."""

    time: float
    verdict: Verdict
    exit_code: int
    stopped_at: str | None
    seconds: float
    causes: tuple[str, ...]
    run_dir: str
    cleaned: str | None = None  # what was (or could not be) cleaned up after an interrupt
    bad: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    not_dropped: str | None = None


Event = RunStarted | StageStarted | Progress | OutcomeReached | StageFinished | NodesDropped | RunFinished
Emit = Callable[[Event], None]
