"""Writes and reads the JSON of a run: its events as lines of `RUN_DIR/events.jsonl`, from which every other report can
be made; and the one document that `-o json` prints and `RUN_DIR/result.json` holds."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TextIO

import msgspec

from runbook.model.errors import FilesWrong, Span
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
from runbook.model.remedy import Remedy, RemedyStep
from runbook.model.verdict import EXIT_BUG, Finding, Outcome, Verdict
from runbook.report.run_record import Record, StageRecord


def json_value(value: object) -> object:
    """The value as JSON can hold it: NaN and infinity become null, values of unknown types their text (a secret:
    `***`)."""
    match value:
        case Enum():
            return json_value(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): json_value(item) for key, item in value.items()}
        case list() | tuple():
            return [json_value(item) for item in value]
        case Set():
            return sorted((json_value(item) for item in value), key=str)
        case _:
            return str(value)


class Jsonl:
    """A reader that writes each event as one line, flushed, so that a killed run still shows how far it came. With
    `of_ranks` it writes the output of ranks as well, which also has files of its own."""

    def __init__(self, stream: TextIO, *, of_ranks: bool = True) -> None:
        self._stream = stream
        self._of_ranks = of_ranks
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if not self._of_ranks and isinstance(event, Progress) and "output" in event.data:
            return
        line = event_to_json(event) + "\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


EVENT_TYPES: Mapping[str, type[Event]] = {
    "run-started": RunStarted,
    "stage-started": StageStarted,
    "progress": Progress,
    "outcome-reached": OutcomeReached,
    "stage-finished": StageFinished,
    "nodes-dropped": NodesDropped,
    "run-finished": RunFinished,
}
EVENT_NAMES = {kind: name for name, kind in EVENT_TYPES.items()}


def event_to_json(event: Event) -> str:
    """One line of ASCII; `event_from_json` gives the same event back."""
    return json.dumps({"event": EVENT_NAMES[type(event)]} | _fields_json(event))


def event_from_json(line: str) -> Event:
    """The event of one line; unknown keys are ignored, and a line that is not an event raises ValueError."""
    try:
        document = json.loads(line)
        event = msgspec.convert(document, EVENT_TYPES[document["event"]])
        if isinstance(event, OutcomeReached):
            parts = msgspec.convert(document["outcome"]["findings"], list[RemedyParts])
            findings = zip(event.outcome.findings, parts, strict=True)
            mended = tuple(replace(finding, remedy=part.whole) for finding, part in findings)
            return replace(event, outcome=replace(event.outcome, findings=mended))
    except (msgspec.ValidationError, LookupError, TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an event: {error!r}") from error
    return event


class RemedyCommand(msgspec.Struct):
    """A command as `result.json` has it."""

    node: str
    command: str


class RemedyParts(msgspec.Struct):
    """A remedy as a finding holds it in JSON: beside its text there are its steps in `events.jsonl`, its commands in
    `result.json`, and neither in older runs."""

    remedy: str
    remedy_steps: list[RemedyStep] | None = None
    remedy_commands: list[RemedyCommand] = []

    @property
    def whole(self) -> Remedy:
        if self.remedy_steps is not None:
            return Remedy(*self.remedy_steps, text=self.remedy)
        commands = [RemedyStep(one.node, (one.command,)) for one in self.remedy_commands]
        return Remedy(*commands, text=self.remedy) if commands else Remedy.note(self.remedy)


def read(path: Path) -> Iterator[Event]:
    """The events of a file; a last line that a killed run left unfinished is passed over."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                event = event_from_json(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                where = Span(str(path), number, 1)
                raise FilesWrong.of("events.malformed", f"this line is not an event: {error}", span=where) from error
            yield event


def _fields_json(value: Event | Outcome | Finding | RemedyStep) -> dict[str, object]:
    return {name: _event_json_value(getattr(value, name)) for name in value.__dataclass_fields__}


def _event_json_value(value: object) -> object:
    match value:
        case Finding():
            return _fields_json(value) | {"remedy_steps": [_fields_json(step) for step in value.mended.steps]}
        case Outcome():
            return _fields_json(value)
        case tuple():
            return [_event_json_value(item) for item in value]
        case _:
            return json_value(value)


class Result:
    """A reader of events; `document()` may be called at any time, and has every key of the contract."""

    def __init__(self) -> None:
        self._record = Record()

    def __call__(self, event: Event) -> None:
        self._record(event)

    def document(self) -> dict[str, object]:
        """The document of the run, as far as its events tell."""
        started, finished = self._record.started, self._record.finished
        return {
            "version": 1,
            "run_id": started.run_id if started else "",
            "playbook": started.playbook if started else "",
            "inventory": started.inventory if started else "",
            "verdict": str(finished.verdict if finished else Verdict.UNKNOWN),
            "exit_code": finished.exit_code if finished else EXIT_BUG,
            "stopped_at": self._record.stopped_at,
            "seconds": round(self._record.seconds, 3),
            "causes": self._record.causes,
            "stages": [self._stage(stage) for stage in self._record.stages],
            "not_run": self._record.not_run,
            "nodes": {
                "all": list(started.nodes) if started else [],
                "bad": list(finished.bad) if finished else [],
                "dropped": list(finished.dropped if finished else self._record.dropped),
                "unknown": list(finished.unknown) if finished else [],
            },
            "not_dropped": finished.not_dropped if finished else None,
            "run_dir": finished.run_dir if finished else started.run_dir if started else "",
            "cleaned": finished.cleaned if finished else None,
        }

    def text(self) -> str:
        """The document as it is printed: ASCII, so that any stream can carry it, and ended by a newline."""
        return json.dumps(self.document(), indent=2) + "\n"

    def _stage(self, stage: StageRecord) -> dict[str, object]:
        until = self._record.last_time - stage.started.time
        document: dict[str, object] = {
            "name": stage.name,
            "check": stage.started.check,
            "verdict": str(stage.verdict),
            "seconds": round(stage.finished.seconds if stage.finished else max(0.0, until), 3),
            "outcomes": [
                _fields_json(one) | {"findings": [_finding_json(finding, one.node) for finding in one.findings]}
                for one in stage.outcomes
            ],
            "silent": stage.silent,
        }
        parts = [links for outcome in stage.outcomes if isinstance(links := outcome.metrics.get("links"), Sequence)]
        if parts:  # each outcome has the links that begin at its node; a reader wants all
            document["metrics"] = {"links": json_value([link for part in parts for link in part])}
        return document


def _finding_json(finding: Finding, node: str) -> dict[str, object]:
    commands = [{"node": where, "command": command} for where, command in finding.mended.typed(node)]
    return _fields_json(finding) | {"remedy_commands": commands}
