"""Events as JSON lines, and back: `RUN_DIR/events.jsonl` is the record that every other report can be made from."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.events import (
    Emit,
    Event,
    NodesDropped,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.remedy import Remedy, Step
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.report.never import assert_never
from runbook.report.values import plain


class Jsonl:
    """A reader that writes each event as one line, flushed, so that a killed run still tells how far it came."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        line = to_json(event) + "\n"
        with self._lock:
            self._stream.write(line)
            self._stream.flush()


def to_json(event: Event) -> str:
    """One line of ASCII; `from_json` gives the same event back."""
    match event:
        case RunStarted():
            name = "run-started"
        case StageStarted():
            name = "stage-started"
        case Progress():
            name = "progress"
        case OutcomeReached():
            name = "outcome-reached"
        case StageFinished():
            name = "stage-finished"
        case NodesDropped():
            name = "nodes-dropped"
        case RunFinished():
            name = "run-finished"
        case _:
            assert_never(event)
    return json.dumps({"event": name} | _fields(event))


def from_json(line: str) -> Event:
    """Read one line; keys it does not know are ignored, and whatever is no event raises ValueError."""
    try:
        told = _EventFields(json.loads(line))
        return told.event()
    except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"not an event: {error!r}") from error


def read(path: Path) -> Iterator[Event]:
    """The events of a file; a last line that a killed run left unfinished is passed over."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                event = from_json(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                where = Span(str(path), number, 1)
                raise FilesWrong([Problem("events.malformed", f"this line is no event: {error}", where)]) from error
            yield event


def replay(events_path: Path | str, reader: Emit) -> None:
    """Tell a reader a finished run again: a report without the cluster."""
    for event in read(Path(events_path)):
        reader(event)


def _fields(value: Event | Outcome | Finding | Step) -> dict[str, object]:
    return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}


def _plain(value: object) -> object:
    match value:
        case Finding():
            return _fields(value) | {"remedy_steps": [_fields(step) for step in value.mended.steps]}
        case Outcome():
            return _fields(value)
        case tuple():
            return [_plain(item) for item in value]
        case _:
            return plain(value)


class _EventFields:
    """One JSON object, asked for what an event is made of."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def event(self) -> Event:
        match self._fields["event"]:
            case "run-started":
                return RunStarted(
                    time=self.number("time"),
                    run_id=self.text("run_id"),
                    version=self.text("version"),
                    playbook=self.text("playbook"),
                    inventory=self.text("inventory"),
                    nodes=self.texts("nodes"),
                    stages=self.texts("stages"),
                    run_dir=self.text("run_dir"),
                    plan=self.mapping("plan") if "plan" in self._fields else {},
                )
            case "stage-started":
                return StageStarted(self.number("time"), self.text("stage"), self.text("check"), self.texts("nodes"))
            case "progress":
                return Progress(
                    time=self.number("time"),
                    stage=self.text("stage"),
                    text=self.text("text"),
                    node=self.maybe_text("node"),
                    rank=self.maybe_whole("rank"),
                    data=self.mapping("data"),
                )
            case "outcome-reached":
                return OutcomeReached(
                    self.number("time"), self.text("stage"), _EventFields(self.mapping("outcome")).outcome()
                )
            case "stage-finished":
                return StageFinished(self.number("time"), self.text("stage"), self.verdict(), self.number("seconds"))
            case "nodes-dropped":
                return NodesDropped(
                    time=self.number("time"),
                    stage=self.text("stage"),
                    reasons={name: _as_text(reason) for name, reason in self.mapping("reasons").items()},
                    unknown=self.texts("unknown"),
                    left=self.texts("left"),
                )
            case "run-finished":
                return RunFinished(
                    time=self.number("time"),
                    verdict=self.verdict(),
                    exit_code=int(self.number("exit_code")),
                    stopped_at=self.maybe_text("stopped_at"),
                    seconds=self.number("seconds"),
                    causes=self.texts("causes"),
                    run_dir=self.text("run_dir"),
                    cleaned=self.maybe_text("cleaned"),
                    bad=self.texts_if_any("bad"),
                    dropped=self.texts_if_any("dropped"),
                    unknown=self.texts_if_any("unknown"),
                    not_dropped=self.maybe_text("not_dropped"),
                )
            case other:
                raise ValueError(f"not an event: {other!r}")

    def outcome(self) -> Outcome:
        return Outcome(
            node=self.text("node"),
            verdict=self.verdict(),
            proof=self.maybe_text("proof"),
            findings=tuple(_EventFields(finding).finding() for finding in self.mappings("findings")),
            metrics=self.mapping("metrics"),
            warnings=self.texts("warnings"),
        )

    def finding(self) -> Finding:
        return Finding(
            cause=self.text("cause"),
            says=self.text("says"),
            remedy=self.remedy(),
            evidence=self.texts("evidence"),
            peers=self.texts("peers"),
        )

    def remedy(self) -> Remedy:
        """Its steps stand beside its text in `events.jsonl`, its commands in `result.json`; in older runs neither does."""
        if "remedy_steps" in self._fields:
            return Remedy(
                *(_EventFields(step).step() for step in self.mappings("remedy_steps")), text=self.text("remedy")
            )
        commands = (
            [_EventFields(command).command() for command in self.mappings("remedy_commands")]
            if "remedy_commands" in self._fields
            else []
        )
        return Remedy(*commands, text=self.text("remedy")) if commands else Remedy.note(self.text("remedy"))

    def step(self) -> Step:
        return Step(self.maybe_text("node"), self.texts("commands"), self.text("note"))

    def command(self) -> Step:
        return Step(self.text("node"), (self.text("command"),))

    def verdict(self) -> Verdict:
        return Verdict(self.text("verdict"))

    def text(self, key: str) -> str:
        return _as_text(self._fields[key])

    def maybe_text(self, key: str) -> str | None:
        value = self._fields.get(key)
        return None if value is None else _as_text(value)

    def number(self, key: str) -> float:
        value = self._fields[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{key} is no number")
        return value

    def maybe_whole(self, key: str) -> int | None:
        return None if self._fields.get(key) is None else int(self.number(key))

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(_as_text(item) for item in self._list(key))

    def texts_if_any(self, key: str) -> tuple[str, ...]:
        return self.texts(key) if key in self._fields else ()

    def mapping(self, key: str) -> Mapping[str, object]:
        return _as_mapping(self._fields[key])

    def mappings(self, key: str) -> list[Mapping[str, object]]:
        return [_as_mapping(item) for item in self._list(key)]

    def _list(self, key: str) -> list[object]:
        value = self._fields[key]
        if not isinstance(value, list):
            raise TypeError(f"{key} is no list")
        return value


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _as_mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no object")
    return value
