"""Launches as lanes: each attempt, each process of it, how long it ran and how it ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.report.html.recorded import Recorded, StageProgress, number
from runbook.report.html.scales import percent
from runbook.report.record import StageRecord

MOST_LANES = 48
"""Of an attempt; of more processes those that ended alike on a node share one."""

THINNEST = 0.004


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
    """`told`: whether the run lived to tell how its processes ended."""

    number: str
    launcher: str
    logs: str
    seconds: float
    processes: tuple[ProcessBar, ...]
    told: bool
    more: int = 0


@dataclass(frozen=True, slots=True)
class LaunchLanes:
    stage: str
    attempts: tuple[AttemptLane, ...]


def launches(recorded: Recorded) -> list[LaunchLanes]:
    found = []
    for stage in recorded.record.stages:
        told = recorded.told(stage)
        if stage.started.check == "launch" and (told.attempts or told.ends):
            found.append(LaunchLanes(stage.name, tuple(_attempts(recorded, stage, told))))
    return found


def _attempts(recorded: Recorded, stage: StageRecord, told: StageProgress) -> list[AttemptLane]:
    until = stage.started.time + stage.finished.seconds if stage.finished else recorded.record.last_time
    ends = {str(one.get("number")): one for one in told.ends}
    attempts = told.attempts or [(stage.started.time, {"number": name}) for name in ends]
    found = []
    for at, (begun, about) in enumerate(attempts):
        name = str(about.get("number"))
        over = attempts[at + 1][0] if at + 1 < len(attempts) else until
        listed = ends.get(name, {}).get("processes")
        processes = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        times = [time for one in processes for key in ("started", "ended") if (time := number(one.get(key)))]
        span = (min([begun, *times]), max([over, *times]))
        lanes = _lanes(processes, span)
        found.append(
            AttemptLane(
                name,
                str(about.get("launcher") or ""),
                str(about.get("logs") or ""),
                span[1] - span[0],
                tuple(lanes[:MOST_LANES]),
                bool(processes),
                sum(lane.count for lane in lanes[MOST_LANES:]),
            )
        )
    return found


def _lanes(processes: Sequence[Mapping[str, object]], span: tuple[float, float]) -> list[ProcessBar]:
    lanes = [_process(one, span) for one in processes]
    if len(lanes) <= MOST_LANES:
        return lanes
    alike: dict[tuple[str, str, str], list[ProcessBar]] = {}
    for lane in lanes:
        alike.setdefault((lane.node, lane.end, lane.kind), []).append(lane)
    few = [
        of[0]
        if len(of) == 1
        else ProcessBar(f"{of[0].ranks} … {of[-1].ranks}", node, of[0].left, of[0].width, end, kind, len(of))
        for (node, end, kind), of in alike.items()
    ]
    return sorted(few, key=lambda lane: ("fail", "unknown", "skip", "ok").index(lane.kind))


def _process(one: Mapping[str, object], span: tuple[float, float]) -> ProcessBar:
    began, over = span
    whole = max(over - began, 1e-9)
    started, ended = number(one.get("started")), number(one.get("ended"))
    left, width = None, ""
    if started is not None:
        place = min(max(0.0, (started - began) / whole), 1 - THINNEST)
        long = ((ended if ended is not None else over) - started) / whole
        left, width = percent(place), percent(max(THINNEST, min(long, 1 - place)))
    listed = one.get("ranks")
    ranks = [rank for rank in listed if isinstance(rank, int)] if isinstance(listed, list) else []
    named = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}" if ranks else "?"
    return ProcessBar(named, str(one.get("node") or ""), left, width, *_end(one, started, ended))


def _end(one: Mapping[str, object], started: float | None, ended: float | None) -> tuple[str, str]:
    """How it ended in words, and the kind of its colour."""
    code, state, why = number(one.get("code")), one.get("state"), str(one.get("why") or "")
    if state == "lost":
        return "its node was lost", "unknown"
    if code is None:
        if started is None:
            return "never started", "skip"
        return ("its end was not seen", "unknown") if ended is None else ("ended, its code is unknown", "unknown")
    if code == 0:
        return "exit 0", "ok"
    text = _code(int(code))
    return (f"{text}, ended by runbook", "skip") if why else (text, "fail")


def _code(code: int) -> str:
    if code > 0 and not 128 < code < 160:
        return f"exit {code}"
    name = -code if code < 0 else code - 128
    try:
        return f"{signal.Signals(name).name} (signal {name})"
    except ValueError:
        return f"signal {name}"
