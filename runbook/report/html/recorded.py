"""A run read back from its folder. Every file in it is hostile: it may be damaged, huge, a link, or somebody else's."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from runbook.model.errors import FilesWrong, Problem
from runbook.model.events import Event, Progress, RunFinished, StageFinished
from runbook.model.folder import BadName, file_name, open_below
from runbook.report.jsonl import from_json
from runbook.report.record import Record, StageRecord

LONGEST_LINE = 32 << 20
MOST_EVENTS = 256 << 20
"""Bytes of events that are read; what ranks print is in files of its own, so a thousand nodes tell far less."""

MOST_RESULT = 64 << 20
MOST_MARKS = 200
"""Moments of a stage that its lane shows."""

MOST_FILES = 2000
LATEST = 1e11
"""Seconds since the epoch that are a time."""


@dataclass(slots=True)
class StageProgress:
    """What a stage told while it ran: rows of bandwidth, attempts of a launch and their ends, and single moments."""

    rows: list[Mapping[str, object]] = field(default_factory=list)
    attempts: list[tuple[float, Mapping[str, object]]] = field(default_factory=list)
    ends: list[Mapping[str, object]] = field(default_factory=list)
    marks: list[Progress] = field(default_factory=list)
    said: int = 0


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file of the run: its names below the folder, and how many bytes it has."""

    names: tuple[str, ...]
    size: int


class Recorded:
    """The run in `folder` as far as its files tell. `flaws` says what could not be read, in sentences."""

    def __init__(self, folder: Path) -> None:
        """Raises FilesWrong where nothing in the folder tells of a run."""
        self.folder = folder
        self.record = Record()
        self.flaws: list[str] = []
        self._told: dict[int, StageProgress] = {}
        events = self._events()
        if not self.record.stages and not self.record.started:
            told = _from_result(self._result())
            for event in told:
                self._take(event)
            if not told:
                message = f"{folder}: no run's files are there"
                help = "name the folder of a run: it holds `events.jsonl` and `result.json`"
                raise FilesWrong([Problem("report.no-run", message, help=help)])
            self.flaws.append(
                f"events.jsonl {'tells nothing' if events else 'is missing'}: only result.json was read, which has no times"
            )

    def told(self, stage: StageRecord) -> StageProgress:
        return self._told.setdefault(id(stage), StageProgress())

    @property
    def timed(self) -> bool:
        """Whether it is known when things happened."""
        return self.record.first_time is not None and self.record.last_time > 0

    @property
    def plan(self) -> Mapping[str, object]:
        """Ranks and environment as `launch.described` tells them; empty for runs that did not record them."""
        return self.record.started.plan if self.record.started else {}

    # Files.

    def open(self, *names: str) -> BinaryIO | None:
        try:
            return open_below(self.folder, *names)
        except (OSError, BadName):
            return None

    def text(self, *names: str, most: int) -> str | None:
        """The last `most` bytes of a file; None where there is none that can be read."""
        file = self.open(*names)
        if file is None:
            return None
        with file:
            try:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - most))
                return file.read(most).decode("utf-8", "replace")
            except OSError:
                return None

    def files(self) -> list[RunFile]:
        """The plain files of the run, two folders deep, by name."""
        found: list[RunFile] = []
        for names in self._walk((), 2):
            if len(found) == MOST_FILES:
                self.flaws.append(f"there are more than {MOST_FILES} files in the folder: the rest is not listed")
                break
            try:
                found.append(RunFile(names, self.folder.joinpath(*names).lstat().st_size))
            except OSError:
                continue
        return found

    def _walk(self, names: tuple[str, ...], deeper: int) -> Iterator[tuple[str, ...]]:
        try:
            with os.scandir(self.folder.joinpath(*names)) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            try:
                file_name(entry.name)
                is_file, is_folder = entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
            except (BadName, OSError):
                continue
            if is_file:
                yield (*names, entry.name)
            elif is_folder and deeper:
                yield from self._walk((*names, entry.name), deeper - 1)

    # Events.

    def _events(self) -> bool:
        """Whether there is a file of events."""
        file = self.open("events.jsonl")
        if file is None:
            return False
        bad: list[int] = []
        with file:
            for number, line in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), 1):
                if file.tell() > MOST_EVENTS:
                    self.flaws.append(f"events.jsonl has more than {MOST_EVENTS >> 20} MiB: the rest was not read")
                    break
                try:
                    event = _sane(from_json(line.decode("utf-8", "replace")))
                except ValueError:
                    if line.endswith(b"\n"):  # else a killed run left it unfinished
                        bad.append(number)
                    continue
                self._take(event)
        if bad:
            lines = ", ".join(map(str, bad[:5])) + (" …" if len(bad) > 5 else "")
            self.flaws.append(f"events.jsonl: {len(bad)} line{'s' * (len(bad) > 1)} (line {lines}) cannot be read")
        return True

    def _take(self, event: Event) -> None:
        if isinstance(event, Progress) and "output" in event.data:
            return
        self.record(event)
        if not isinstance(event, Progress):
            return
        told = self.told(self.record.stage(event.stage, event.time))
        row, attempt, ends = (event.data.get(key) for key in ("row", "attempt", "ends"))
        if isinstance(row, Mapping):
            told.rows.append(row)
        elif isinstance(attempt, Mapping):
            told.attempts.append((event.time, attempt))
        elif isinstance(ends, Mapping):
            told.ends.append(ends)
        if event.text:
            told.said += 1
            if len(told.marks) < MOST_MARKS:
                told.marks.append(event)

    def _result(self) -> object:
        text = self.text("result.json", most=MOST_RESULT)
        try:
            return json.loads(text or "null")
        except (ValueError, RecursionError):
            self.flaws.append("result.json cannot be read: it breaks off, or is no result of a run")
            return None


def number(value: object) -> float | None:
    """A finite number, or None: JSON from a stranger may hold NaN, 10**400 or a text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def _sane(event: Event) -> Event:
    """The event; ValueError where it is said to be at no time that there is."""
    times = [event.time, event.seconds] if isinstance(event, StageFinished | RunFinished) else [event.time]
    if any((found := number(time)) is None or not 0 <= found < LATEST for time in times):
        raise ValueError("not an event: its time is none")
    return event


def _from_result(document: object) -> list[Event]:
    """The events that a result stands for, all at time 0; nothing where it is no result."""
    if not isinstance(document, dict):
        return []
    try:
        nodes = document.get("nodes") or {}
        stages = document["stages"]
        lines: list[dict[str, object]] = [
            {
                **{key: document[key] for key in ("run_id", "playbook", "inventory")},
                "event": "run-started",
                "version": str(document.get("runbook", "")),
                "nodes": nodes.get("all", []) if isinstance(nodes, dict) else nodes,
                "stages": [*(stage["name"] for stage in stages), *document.get("not_run", [])],
                "run_dir": document.get("run_dir", ""),
            }
        ]
        for stage in stages:
            names = [outcome["node"] for outcome in stage["outcomes"]]
            about = {"stage": stage["name"], "check": stage["check"]}
            silent = stage.get("silent", [])
            lines.append({**about, "event": "stage-started", "nodes": [*names, *silent]})
            lines += [{**about, "event": "outcome-reached", "outcome": outcome} for outcome in stage["outcomes"]]
            lines.append({**about, "event": "stage-finished", **{key: stage[key] for key in ("verdict", "seconds")}})
        kept = ("verdict", "exit_code", "stopped_at", "seconds", "causes", "cleaned", "not_dropped")
        ended = {key: document.get(key) for key in kept} | {"run_dir": document.get("run_dir", "")}
        if isinstance(nodes, dict):
            ended |= {key: nodes.get(key, []) for key in ("bad", "dropped", "unknown")}
        lines.append({**ended, "event": "run-finished"})
        return [_sane(from_json(json.dumps({"time": 0.0, **line}))) for line in lines]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return []
