"""Draws the stages of a run over time, one lane each, with groups of nodes that said the same, the worst first; and the
attempts of its launches. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.model.events import NodesDropped
from runbook.model.grouping import values_by_key
from runbook.model.process_end import ProcessEnd
from runbook.model.units import range_text, seconds_text
from runbook.model.verdict import Verdict
from runbook.report.folding import Gist, OutcomeGroup, dropped_groups, outcome_groups, stage_groups, warning_groups
from runbook.report.html.charts import Tick, percent_text, time_ticks
from runbook.report.html.recorded_run import Recorded, StageProgress, mappings_in
from runbook.report.run_record import StageRecord, finite_number
from runbook.report.run_text import progress_text

MIN_BAR_WIDTH = 0.004
"""The least width of a bar, so that a very short stage is visible."""

MIN_MARK_DISTANCE = 0.003
"""Two marks nearer than this become one."""

MAX_OUTCOME_GROUPS = 40


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage: where its bar lies (None if times are unknown), its moments, and what its nodes said. While the stage
    goes on, `running` are the nodes without an outcome, and `latest` is its last message."""

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
    """The nodes that the run went on without after this stage: (reason, nodes)."""
    running: tuple[str, ...] = ()
    latest: str = ""


@dataclass(frozen=True, slots=True)
class Timeline:
    """The picture of a run: its time axis, a lane for each stage, and the stages that did not run."""

    ticks: tuple[Tick, ...]
    lanes: tuple[Lane, ...]
    not_run: tuple[str, ...]


def stage_timeline(recorded: Recorded) -> Timeline:
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
        lanes.append(_stage_lane(recorded, stage, (began, whole), gist, own))
    ticks = tuple(
        Tick(percent_text(at / whole), _axis_time_text(at), "start" if number == 0 else "middle", odd=number % 2 == 1)
        for number, at in enumerate(time_ticks(whole))
        if at <= whole * 0.96
    )
    return Timeline(ticks if recorded.timed else (), tuple(lanes), tuple(record.not_run))


def _axis_time_text(seconds: float) -> str:
    """A round number of seconds, as an axis has it."""
    if 60 <= seconds < 3600 and seconds % 60 == 0:
        return f"{seconds / 60:g} min"
    return f"{seconds:g} s" if 0.1 <= seconds < 99.95 or not seconds else seconds_text(seconds)


def _bar_place(start: float, seconds: float, span: tuple[float, float]) -> tuple[str, str]:
    """Where a bar begins and how wide it is, in a picture of the time `span` (its beginning and its length)."""
    began, whole = span
    left = min(max(0.0, (start - began) / whole), 1 - MIN_BAR_WIDTH)
    return percent_text(left), percent_text(max(MIN_BAR_WIDTH, min(seconds / whole, 1 - left)))


def _stage_lane(
    recorded: Recorded, stage: StageRecord, span: tuple[float, float], gist: Gist, drops: Sequence[NodesDropped]
) -> Lane:
    start = stage.started.time
    seconds = stage.finished.seconds if stage.finished else max(0.0, recorded.record.last_time - start)
    left, width = _bar_place(start, seconds, span)
    goes_on = recorded.lives and stage.finished is None
    groups = outcome_groups(stage.outcomes, gist) if goes_on else stage_groups(stage, gist)
    progress = recorded.progress_of(stage)
    bad = sum(group.verdict.stops for group in groups)
    shown = groups[: max(bad, MAX_OUTCOME_GROUPS)]
    return Lane(
        name=stage.name,
        check=stage.started.check,
        verdict=stage.verdict,
        seconds=seconds,
        finished=stage.finished is not None,
        left=left if recorded.timed else None,
        width=width,
        marks=_stage_marks(recorded, stage, span),
        groups=tuple(shown),
        more=sum(len(group.nodes) for group in groups[len(shown) :]),
        warnings=(*_open_stage_warnings(progress, goes_on), *warning_groups(stage.outcomes, gist)),
        dropped=tuple(group for drop in drops for group in dropped_groups(drop, gist)),
        running=tuple(stage.silent) if goes_on else (),
        latest=progress_text(progress.latest) if goes_on and progress.latest else "",
    )


def _open_stage_warnings(progress: StageProgress, goes_on: bool) -> list[tuple[str, tuple[str, ...]]]:
    """The warnings and stalls of a stage, each with its node, if the stage goes on; otherwise none."""
    return [(one.text, (one.node,) if one.node else ()) for one in progress.warned] if goes_on else []


def _stage_marks(recorded: Recorded, stage: StageRecord, span: tuple[float, float]) -> tuple[tuple[str, str], ...]:
    """The moments of a stage, as places and texts; moments at one place become one."""
    began, whole = span
    found: list[tuple[float, list[str]]] = []
    for progress in recorded.progress_of(stage).marks:
        part = min(1.0, max(0.0, (progress.time - began) / whole))
        text = f"{seconds_text(max(0.0, progress.time - stage.started.time))}: {progress_text(progress)}"
        if found and abs(part - found[-1][0]) < MIN_MARK_DISTANCE:
            found[-1][1].append(text)
        else:
            found.append((part, [text]))
    return tuple((percent_text(part), "\n".join(texts[:8])) for part, texts in found)


MAX_LANES = 48
"""Lanes of an attempt; if there are more processes, those that ended alike on a node share a lane."""


@dataclass(frozen=True, slots=True)
class ProcessBar:
    """One process, or several of a node that ended alike. `kind`: class of its colour."""

    ranks: str
    node: str
    left: str | None
    width: str
    end: str
    kind: str  # ok | fail | skip | unknown
    count: int = 1


@dataclass(frozen=True, slots=True)
class AttemptLane:
    """One attempt of a launch. `ended`: whether the run recorded how its processes ended."""

    number: str
    launcher: str
    logs: str
    seconds: float
    processes: tuple[ProcessBar, ...]
    ended: bool
    more: int = 0


@dataclass(frozen=True, slots=True)
class LaunchLanes:
    """The attempts of one launch stage."""

    stage: str
    attempts: tuple[AttemptLane, ...]


def launch_lanes(recorded: Recorded) -> list[LaunchLanes]:
    found = []
    for stage in recorded.record.stages:
        progress = recorded.progress_of(stage)
        if stage.started.check == "launch" and (progress.attempts or progress.ends):
            found.append(LaunchLanes(stage.name, tuple(_attempt_lanes(recorded, stage, progress))))
    return found


def _attempt_lanes(recorded: Recorded, stage: StageRecord, progress: StageProgress) -> list[AttemptLane]:
    """The attempts of a launch, with lanes of processes over the time of each attempt."""
    until = stage.started.time + stage.finished.seconds if stage.finished else recorded.record.last_time
    ends = {str(one.get("number")): one for one in progress.ends}
    attempts = progress.attempts or [(stage.started.time, {"number": name}) for name in ends]
    found = []
    for at, (begun, about) in enumerate(attempts):
        name = str(about.get("number"))
        over = attempts[at + 1][0] if at + 1 < len(attempts) else until
        processes = mappings_in(ends.get(name, {}).get("processes"))
        if at + 1 == len(attempts) and _is_left_running(recorded, stage, processes):
            processes = []
        times = [time for one in processes for key in ("started", "ended") if (time := finite_number(one.get(key)))]
        span = (min([begun, *times]), max([over, *times]))
        lanes = _process_bars(processes, span)
        found.append(
            AttemptLane(
                number=name,
                launcher=str(about.get("launcher") or ""),
                logs=str(about.get("logs") or ""),
                seconds=span[1] - span[0],
                processes=tuple(lanes[:MAX_LANES]),
                ended=bool(processes),
                more=sum(lane.count for lane in lanes[MAX_LANES:]),
            )
        )
    return found


def _is_left_running(recorded: Recorded, stage: StageRecord, processes: Sequence[Mapping[str, object]]) -> bool:
    """Whether some of these processes go on while nobody watches them."""
    last = stage is recorded.record.stages[-1]
    return recorded.lives and last and any(finite_number(one.get("code")) is None for one in processes)


def _process_bars(processes: Sequence[Mapping[str, object]], span: tuple[float, float]) -> list[ProcessBar]:
    lanes = [_process_bar(one, span) for one in processes]
    if len(lanes) <= MAX_LANES:
        return lanes
    few = [
        of[0] if len(of) == 1 else replace(of[0], ranks=f"{of[0].ranks} … {of[-1].ranks}", count=len(of))
        for of in values_by_key(((lane.node, lane.end, lane.kind), lane) for lane in lanes).values()
    ]
    return sorted(few, key=lambda lane: ("fail", "unknown", "skip", "ok").index(lane.kind))


def _process_bar(one: Mapping[str, object], span: tuple[float, float]) -> ProcessBar:
    """The bar of one process, in a picture of the time `span` (its beginning and its end)."""
    began, over = span
    started, ended = finite_number(one.get("started")), finite_number(one.get("ended"))
    left, width = None, ""
    if started is not None:
        seconds = (ended if ended is not None else over) - started
        left, width = _bar_place(started, seconds, (began, max(over - began, 1e-9)))
    listed = one.get("ranks")
    ranks = [rank for rank in listed if isinstance(rank, int)] if isinstance(listed, list) else []
    named = range_text(ranks[0], ranks[-1]) if ranks else "?"
    return ProcessBar(named, str(one.get("node") or ""), left, width, *_process_end(one, started, ended))


def _process_end(one: Mapping[str, object], started: float | None, ended: float | None) -> tuple[str, str]:
    """How a process ended, in words, and the kind of its colour."""
    code, state, why = finite_number(one.get("code")), one.get("state"), str(one.get("why") or "")
    if state == "lost":
        return "its node was lost", "unknown"
    if code is None:
        if started is None:
            return "never started", "skip"
        return ("its end was not seen", "unknown") if ended is None else ("ended, its code is unknown", "unknown")
    if code == 0:
        return "exit 0", "ok"
    text = _exit_code_text(int(code))
    return (f"{text}, ended by runbook", "skip") if why else (text, "fail")


def _exit_code_text(code: int) -> str:
    end = ProcessEnd(code)
    if end.signal is None:
        return f"exit {code}"
    return f"{end.signal_name} (signal {end.signal})" if end.signal_name else end.signal_text
