"""Reads a run back from its folder: its events, and what it kept of its ranks. Every file in the folder is hostile: it
may be damaged, huge, a link, or another user's."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from runbook.model.errors import FilesWrong
from runbook.model.events import Event, Progress, RunFinished, StageFinished
from runbook.model.run_files import EVENTS_FILE, MAX_EVENT_LINE_BYTES, RESULT_FILE
from runbook.model.safe_files import BadName, checked_file_name, open_file_below
from runbook.model.units import count_text
from runbook.model.verdict import Verdict
from runbook.node.journal import MAX_UNIX_TIME_S
from runbook.report.run_json import event_from_json
from runbook.report.run_record import Record, StageRecord, finite_number

MAX_EVENTS_BYTES = 256 << 20
"""Bytes of events that are read; the ranks' output is in other files, so a thousand nodes need far less."""

MAX_RESULT_BYTES = 64 << 20
MAX_PROGRESS_MARKS = 200
"""Moments of a stage that its lane shows."""

MAX_STAGE_WARNINGS = 20
"""Warnings and stalls of a running stage that are kept, the latest ones."""

MAX_LISTED_FILES = 2000


@dataclass(slots=True)
class StageProgress:
    """A stage's progress events: rows of bandwidth, attempts of a launch and their ends, and single moments. `warned`:
    warnings and stalls found while the stage goes on. At the end its outcomes hold them; a stall is dropped at the next
    step."""

    rows: list[Mapping[str, object]] = field(default_factory=list)
    attempts: list[tuple[float, Mapping[str, object]]] = field(default_factory=list)
    ends: list[Mapping[str, object]] = field(default_factory=list)
    marks: list[Progress] = field(default_factory=list)
    warned: list[Progress] = field(default_factory=list)
    latest: Progress | None = None
    said: int = 0


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file of the run: its names below the folder, and how many bytes it has."""

    names: tuple[str, ...]
    size: int


class Recorded:
    """The run in `folder`, as far as its files tell. `flaws` are sentences on what could not be read. `lives`: the
    caller knows that the run goes on."""

    def __init__(self, folder: Path, *, lives: bool = False) -> None:
        """Raises FilesWrong if the folder has no files of a run."""
        self.folder = folder
        self.lives = lives
        self.record = Record()
        self.flaws: list[str] = []
        self._progress: dict[int, StageProgress] = {}
        events = self._events()
        if not self.record.stages and not self.record.started:
            of_result = _events_of_result(self._result())
            for event in of_result:
                self._take(event)
            if not of_result:
                message = f"{folder}: no run's files are there"
                help = "name the folder of a run: it holds `events.jsonl` and `result.json`"
                raise FilesWrong.of("report.no-run", message, help=help)
            self.flaws.append(
                f"events.jsonl {'tells nothing' if events else 'is missing'}: "
                "only result.json was read, which has no times"
            )
        if lives:  # a detached launch that nobody follows yet: its run has a recorded end, and goes on
            self.record.finished = None
        if lives and self.timed:
            self.record.last_time = max(self.record.last_time, time.time())

    def progress_of(self, stage: StageRecord) -> StageProgress:
        return self._progress.setdefault(id(stage), StageProgress())

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
            return open_file_below(self.folder, *names)
        except (OSError, BadName):
            return None

    def text(self, *names: str, most: int) -> str | None:
        """The last `most` bytes of a file as text; None if the file cannot be read."""
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
            if len(found) == MAX_LISTED_FILES:
                self.flaws.append(f"there are more than {MAX_LISTED_FILES} files in the folder: the rest is not listed")
                break
            try:
                found.append(RunFile(names, self.folder.joinpath(*names).lstat().st_size))
            except OSError:
                continue
        return found

    def _walk(self, names: tuple[str, ...], deeper: int) -> Iterator[tuple[str, ...]]:
        """Yields the names of plain files below a folder, `deeper` folders deep, without following links."""
        try:
            with os.scandir(self.folder.joinpath(*names)) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            try:
                checked_file_name(entry.name)
                is_file, is_folder = entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False)
            except (BadName, OSError):
                continue
            if is_file:
                yield (*names, entry.name)
            elif is_folder and deeper:
                yield from self._walk((*names, entry.name), deeper - 1)

    # Events.

    def _events(self) -> bool:
        """Reads the events. False if there is no file of events."""
        file = self.open(EVENTS_FILE)
        if file is None:
            return False
        bad: list[int] = []
        with file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_EVENT_LINE_BYTES), b""), 1):
                if file.tell() > MAX_EVENTS_BYTES:
                    self.flaws.append(
                        f"{EVENTS_FILE} has more than {MAX_EVENTS_BYTES >> 20} MiB: the rest was not read"
                    )
                    break
                try:
                    event = _checked_event(event_from_json(line.decode("utf-8", "replace")))
                except ValueError:
                    if line.endswith(b"\n"):  # else a killed run left it unfinished
                        bad.append(number)
                    continue
                self._take(event)
        if bad:
            lines = ", ".join(map(str, bad[:5])) + (" …" if len(bad) > 5 else "")
            self.flaws.append(f"events.jsonl: {count_text(len(bad), 'line')} (line {lines}) cannot be read")
        return True

    def _take(self, event: Event) -> None:
        """Enters an event into the record and the progress of its stage; output of ranks is left out."""
        if isinstance(event, Progress) and "output" in event.data:
            return
        self.record(event)
        if not isinstance(event, Progress):
            return
        progress = self.progress_of(self.record.stage(event.stage, event.time))
        row, attempt, ends = (event.data.get(key) for key in ("row", "attempt", "ends"))
        if isinstance(row, Mapping):
            progress.rows.append(row)
        elif isinstance(attempt, Mapping):
            progress.attempts.append((event.time, attempt))
            progress.warned.clear()
        elif isinstance(ends, Mapping):
            progress.ends.append(ends)
        if "warning" in event.data or "stall" in event.data:
            progress.warned = [*progress.warned, event][-MAX_STAGE_WARNINGS:]
        pace = event.data.get("pace")
        if isinstance(pace, Mapping) and (age := finite_number(pace.get("age_s"))) is not None:
            came = event.time - age
            progress.warned = [one for one in progress.warned if "stall" not in one.data or one.time >= came]
        if event.text:
            progress.said += 1
            progress.latest = event
            if pace is None and len(progress.marks) < MAX_PROGRESS_MARKS:
                progress.marks.append(event)

    def _result(self) -> object:
        text = self.text(RESULT_FILE, most=MAX_RESULT_BYTES)
        try:
            return json.loads(text or "null")
        except (ValueError, RecursionError):
            self.flaws.append("result.json cannot be read: it breaks off, or is no result of a run")
            return None


def mappings_in(value: object) -> list[Mapping[str, object]]:
    """The mappings in a list; none for any other value."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _checked_event(event: Event) -> Event:
    """The event; ValueError if its time is not a valid one."""
    times = [event.time, event.seconds] if isinstance(event, StageFinished | RunFinished) else [event.time]
    if any((found := finite_number(time)) is None or not 0 <= found < MAX_UNIX_TIME_S for time in times):
        raise ValueError("not an event: its time is none")
    return event


def _events_of_result(document: object) -> list[Event]:
    """The events that a result stands for, all at time 0; none if the document is no result."""
    if not isinstance(document, dict):
        return []
    try:
        nodes = document.get("nodes") or {}
        stages = document["stages"]
        lines: list[dict[str, object]] = [
            {
                **{key: document[key] for key in ("run_id", "playbook", "inventory")},
                "event": "run-started",
                "version": "",
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
        return [_checked_event(event_from_json(json.dumps({"time": 0.0, **line}))) for line in lines]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError):
        return []


MAX_RANK_DUMPS = 64
MAX_EXTRACT_CHARACTERS = 8_000
"""Characters of one stack or one log."""

MAX_FLIGHT_RECORDER_BYTES = 4 << 20
MAX_LAST_CALLS = 8
MAX_LOG_TAILS = 12
MAX_LOG_TAIL_LINES = 30

_RANK_DUMP_NAME = re.compile(r"rank-([0-9]{1,9})\.(.+?)\.(stack|flight\.json)")


@dataclass(frozen=True, slots=True)
class FlightCall:
    """One collective of a flight record."""

    number: str
    name: str
    state: str
    sizes: str


@dataclass(frozen=True, slots=True)
class Dump:
    """What was seen of one rank while it hung, or of a whole node: then `rank` is None, and `name` that of the file."""

    rank: int | None
    name: str
    stack: str
    calls: tuple[FlightCall, ...]


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log; `whole`: it is the whole log."""

    name: str
    text: str
    whole: bool


def hang_dumps(recorded: Recorded, files: Sequence[RunFile]) -> tuple[list[Dump], int]:
    """The dumps of a hang, by rank, and how many more files there are."""
    stacks: dict[tuple[int, str], str] = {}
    flights: dict[tuple[int, str], tuple[FlightCall, ...]] = {}
    others: list[Dump] = []
    listed = [file for file in files if file.names[0] == "hang" and len(file.names) == 2]
    for file in listed[: 2 * MAX_RANK_DUMPS]:
        match = _RANK_DUMP_NAME.fullmatch(file.names[1])
        if match is None:
            text = recorded.text(*file.names, most=MAX_FLIGHT_RECORDER_BYTES) or ""
            others.append(Dump(None, file.names[1], _text_end(rank_process_states(text) or text), ()))
        elif match[3] == "stack":
            stacks[int(match[1]), match[2]] = _text_end(
                recorded.text(*file.names, most=MAX_EXTRACT_CHARACTERS * 4) or ""
            )
        else:
            flights[int(match[1]), match[2]] = last_flight_calls(
                recorded.text(*file.names, most=MAX_FLIGHT_RECORDER_BYTES) or ""
            )
    of_ranks = [
        Dump(rank, node, stacks.get((rank, node), ""), flights.get((rank, node), ()))
        for rank, node in sorted({*stacks, *flights})
    ]
    # Dumps of a launch first: a dump that belongs to no attempt was kept by a check before the launch.
    launched = [dump for dump in others if dump.name.startswith("attempt-")]
    checked = [dump for dump in others if dump not in launched]
    return [*launched[:MAX_RANK_DUMPS], *of_ranks, *checked[:MAX_RANK_DUMPS]], max(0, len(listed) - 2 * MAX_RANK_DUMPS)


def rank_process_states(text: str) -> str:
    """What a node reported of its ranks' processes, one a line, with their stacks; empty for another document."""
    try:
        ranks = json.loads(text or "null")["ranks"]
        return "\n".join(line for rank in ranks for line in _rank_process_lines(rank, ranks[rank]))
    except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
        return ""


def _rank_process_lines(rank: str, seen: Mapping[str, Any]) -> Iterator[str]:
    for process in seen["processes"]:
        cpu = finite_number(process.get("cpu"))
        busy = "" if cpu is None else f", {cpu:.0%} of a CPU"
        who = f"rank {rank}: pid {process.get('pid')} {process.get('comm')}"
        yield f"{who}, state {process.get('state')}{busy}, in {process.get('wchan')}"
    yield from (f"  {line}" for line in str(seen.get("stack") or "").splitlines())
    for pid, stack in seen["own_stacks"].items():
        yield f"  stack of {pid}:"
        yield from (f"    {line}" for line in str(stack).splitlines())


def last_flight_calls(text: str) -> tuple[FlightCall, ...]:
    """The last collectives of torch's flight recorder; empty for another document."""
    try:
        record = json.loads(text or "null")
    except (ValueError, RecursionError):
        return ()
    record = record.get("flight", record) if isinstance(record, dict) else None
    entries = record.get("entries") if isinstance(record, dict) else None
    if not isinstance(entries, list):
        return ()
    return tuple(_flight_call(entry) for entry in entries[-MAX_LAST_CALLS:] if isinstance(entry, Mapping))


def _flight_call(entry: Mapping[str, object]) -> FlightCall:
    number = entry.get("collective_seq_id", entry.get("record_id"))
    values = (number, entry.get("profiling_name"), entry.get("state"), entry.get("input_sizes"))
    return FlightCall(*("" if value is None else str(value)[:200] for value in values))


def log_tails(recorded: Recorded, files: Sequence[RunFile]) -> list[Tail]:
    """The ends of the logs of a run that did not pass: those of bad nodes first, errors before other output."""
    record = recorded.record
    if record.finished is not None and record.finished.verdict in (Verdict.PASS, Verdict.SKIP):
        return []
    bad = {o.node for stage in record.stages for o in stage.outcomes if o.verdict is Verdict.FAIL}

    def order(file: RunFile) -> tuple[bool, bool, tuple[str, ...]]:
        name = file.names[-1]
        return (not any(node in name for node in bad), name.endswith(".out"), file.names)

    found = []
    for file in sorted((file for file in files if file.names[0] == "logs" and file.size), key=order)[:MAX_LOG_TAILS]:
        text = recorded.text(*file.names, most=MAX_EXTRACT_CHARACTERS)
        if text and text.strip():
            lines = text.splitlines()
            shown = (
                lines[-MAX_LOG_TAIL_LINES:] if file.size <= MAX_EXTRACT_CHARACTERS else lines[1:][-MAX_LOG_TAIL_LINES:]
            )
            whole = file.size <= MAX_EXTRACT_CHARACTERS and len(lines) <= MAX_LOG_TAIL_LINES
            found.append(Tail("/".join(file.names), "\n".join(shown), whole))
    return found


def _text_end(text: str) -> str:
    return (
        text
        if len(text) <= MAX_EXTRACT_CHARACTERS
        else f"… {len(text) - MAX_EXTRACT_CHARACTERS} characters before this …\n{text[-MAX_EXTRACT_CHARACTERS:]}"
    )
