"""The stages of a run over time: a lane each, with the nodes that said the same, the worst first. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.events import NodesDropped
from runbook.model.units import seconds_text
from runbook.model.verdict import Verdict
from runbook.report.alike import Gist
from runbook.report.groups import OutcomeGroup, dropped_groups, stage_groups, warning_groups
from runbook.report.html.recorded import Recorded
from runbook.report.html.scales import Tick, percent, time_ticks
from runbook.report.record import StageRecord
from runbook.report.stage_status import progress_text

THINNEST = 0.004
"""Of the width: a stage of a moment is seen all the same."""

CLOSEST = 0.003
"""Nearer than this two marks are one."""

MOST_GROUPS = 40


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage: where its bar lies (None where times are unknown), the moments of it, and what its nodes said."""

    name: str
    check: str
    verdict: Verdict
    seconds: float
    finished: bool
    left: str | None
    width: str
    marks: tuple[tuple[str, str], ...]  # (place, text)
    groups: tuple[OutcomeGroup, ...]
    more: int  # nodes in groups that are left out, none of them bad
    warnings: tuple[tuple[str, tuple[str, ...]], ...]  # (text, nodes)
    dropped: tuple[tuple[str, tuple[str, ...]], ...]
    """After it the run went on without these: (reason, nodes)."""


@dataclass(frozen=True, slots=True)
class Timeline:
    ticks: tuple[Tick, ...]
    lanes: tuple[Lane, ...]
    not_run: tuple[str, ...]


def timeline(recorded: Recorded) -> Timeline:
    record = recorded.record
    began = record.first_time or 0.0
    whole = max(record.last_time - began, record.seconds, 1e-9)
    gist = Gist(record.started.nodes if record.started else ())
    drops = list(record.drops)
    lanes = []
    for stage in record.stages:
        # A stage that runs again after a drop is listed again: each drop belongs to the first lane of its name.
        own = [drop for drop in drops[:1] if drop.stage == stage.name]
        drops = drops[len(own) :]
        lanes.append(_lane(recorded, stage, (began, whole), gist, own))
    ticks = tuple(
        Tick(percent(at / whole), _round(at), "start" if number == 0 else "middle", odd=number % 2 == 1)
        for number, at in enumerate(time_ticks(whole))
        if at <= whole * 0.96
    )
    return Timeline(ticks if recorded.timed else (), tuple(lanes), tuple(record.not_run))


def _round(seconds: float) -> str:
    """A round number of seconds, as an axis has it."""
    return f"{seconds:g} s" if 0.1 <= seconds < 60 or not seconds else seconds_text(seconds)


def _lane(
    recorded: Recorded, stage: StageRecord, span: tuple[float, float], gist: Gist, drops: Sequence[NodesDropped]
) -> Lane:
    began, whole = span
    start = stage.started.time
    seconds = stage.finished.seconds if stage.finished else max(0.0, recorded.record.last_time - start)
    left = min(max(0.0, (start - began) / whole), 1 - THINNEST)
    width = max(THINNEST, min(seconds / whole, 1 - left))
    groups = stage_groups(stage, gist)
    bad = sum(group.verdict.stops for group in groups)
    shown = groups[: max(bad, MOST_GROUPS)]
    return Lane(
        stage.name,
        stage.started.check,
        stage.verdict,
        seconds,
        stage.finished is not None,
        percent(left) if recorded.timed else None,
        percent(width),
        _marks(recorded, stage, span),
        tuple(shown),
        sum(len(group.nodes) for group in groups[len(shown) :]),
        tuple(warning_groups(stage.outcomes, gist)),
        tuple(group for drop in drops for group in dropped_groups(drop, gist)),
    )


def _marks(recorded: Recorded, stage: StageRecord, span: tuple[float, float]) -> tuple[tuple[str, str], ...]:
    """Moments, those that fall together as one."""
    began, whole = span
    found: list[tuple[float, list[str]]] = []
    for progress in recorded.told(stage).marks:
        part = min(1.0, max(0.0, (progress.time - began) / whole))
        text = f"{seconds_text(max(0.0, progress.time - stage.started.time))}: {progress_text(progress)}"
        if found and abs(part - found[-1][0]) < CLOSEST:
            found[-1][1].append(text)
        else:
            found.append((part, [text]))
    return tuple((percent(part), "\n".join(texts[:8])) for part, texts in found)
