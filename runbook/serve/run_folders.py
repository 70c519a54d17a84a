"""The run folders of a server: how they are listed and searched, and how each is read as far as it is written."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from runbook.model.errors import FilesWrong
from runbook.model.events import Progress, RunStarted
from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import open_file_below, read_json_below
from runbook.node.journal import MAX_UNIX_TIME_S
from runbook.report.run_json import Result, event_from_json, read
from runbook.report.run_record import finite_number
from runbook.serve.store import Store

T = TypeVar("T")
RUN_FOLDER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
MAX_RUN_FILE_BYTES = 64 << 20
"""The most bytes of a result, or of events, that are read for a page."""
STARTED_FILE = "started.json"
"""The file that a run has that was started from a page: who started it, of which group, and as which process."""
FOLDER_LIST_INTERVAL_S = 1.0
"""How long a list of the run folders counts as up to date."""
MAX_REMEMBERED_VALUES = 5000
"""The most values that `Runs.found` and `Runs.took_over` keep."""


class NoRun(LookupError):
    """There is no such run, or its folder cannot be read."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run in a list. `verdict` is empty while the run has none; `began` is in seconds since 1970; `job` is the run's
    id on the nodes."""

    id: str
    began: float
    seconds: float | None
    playbook: str
    inventory: str
    verdict: str
    stopped_at: str
    causes: tuple[str, ...]
    nodes: tuple[str, ...]
    person: str
    job: str
    group: str


@dataclass(frozen=True, slots=True)
class RunFilter:
    """What to search runs for; an empty field matches any run. Runs match that began at `since` or later and before
    `until`, both in seconds since 1970."""

    host: str = ""
    cause: str = ""
    playbook: str = ""
    person: str = ""
    group: str = ""
    verdict: str = ""
    since: float | None = None
    until: float | None = None


class Runs:
    """The runs below a folder, which is made if it is missing. May be used from several threads."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._forgotten = 0
        self._found: dict[tuple[str, str], tuple[object, Any]] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def path(self, id: str) -> Path:
        """The folder of a run. Raises NoRun."""
        path = self.folder / id
        try:
            if not RUN_FOLDER_NAME.fullmatch(id) or not stat.S_ISDIR(path.lstat().st_mode):
                raise NoRun(id)
        except OSError:
            raise NoRun(id) from None
        return path

    def row(self, id: str) -> RunRow:
        """A run as lists show it. Raises NoRun."""
        self.path(id)
        self.refresh(id)
        found = self._store.read(f"SELECT {_RUN_COLUMNS} FROM runs WHERE id = ?", id)
        if not found:
            raise NoRun(id)
        return _run_row(found[0])

    def search(self, wanted: RunFilter, *, most: int, skip: int = 0) -> tuple[list[RunRow], int]:
        """The runs that match, the latest first: at most `most` after the first `skip`; and the number of all that
        match."""
        self.refresh()
        where, values = _sql_condition(wanted)
        (count,) = self._store.read(f"SELECT count(*) FROM runs WHERE {where}", *values)[0]
        page = f"SELECT {_RUN_COLUMNS} FROM runs WHERE {where} ORDER BY began DESC, id DESC LIMIT ? OFFSET ?"
        rows = self._store.read(page, *values, most, skip)
        return [_run_row(row) for row in rows], count

    def without_end(self, group: str = "") -> list[str]:
        """The ids of the runs that were started from a page and have no verdict: of this group, or of all."""
        self.refresh()
        rows = self._store.read(
            "SELECT id FROM runs WHERE run_group != '' AND (? = '' OR run_group = ?) AND verdict = ''", group, group
        )
        return [row["id"] for row in rows]

    def document(self, id: str) -> dict[str, Any]:
        """The content of `result.json`. For a run without one, which is under way or was killed, the same as far as its
        events tell. Raises NoRun."""
        path = self.path(id)
        whole = read_json(path / RESULT_FILE)
        result = Result()
        if _is_run_result(whole):
            return result.document() | whole
        with contextlib.suppress(OSError, ValueError, FilesWrong):
            if (path / EVENTS_FILE).lstat().st_size <= MAX_RUN_FILE_BYTES:
                for event in read(path / EVENTS_FILE):
                    result(event)
        document = result.document()
        document["exit_code"] = None
        return document

    def found(self, id: str, what: str, find: Callable[[Mapping[str, Any]], T]) -> T:
        """What `find` makes of a run's document. It is kept under the name `what` until the run writes something: a
        document of a thousand nodes takes long to read, and open pages ask every few seconds. Raises NoRun."""
        return self._kept(id, what, lambda: find(self.document(id)))

    def took_over(self, id: str) -> Mapping[str, str]:
        """The spares that have taken a node's place in a run, each with that node, by the run's events. Raises
        NoRun."""
        return self._kept(id, "took over", lambda: _replaced_nodes_by_spare(self.path(id)))

    def _kept(self, id: str, what: str, find: Callable[[], T]) -> T:
        """The value that `find` gave when the run last wrote something, kept under the name `what`."""
        path = self.path(id)
        events = _file_status(path / EVENTS_FILE)
        written = result_mark(path), events.st_size if events else 0
        known = self._found.get((id, what))
        if known is None or known[0] != written:
            known = written, find()
            if len(self._found) >= MAX_REMEMBERED_VALUES:
                self._found.clear()
            self._found[id, what] = known
        value: T = known[1]
        return value

    def mentions(self, id: str, words: bytes) -> bool:
        """Whether the result of a run holds these bytes. Raises NoRun."""
        try:
            with open_file_below(self.path(id), RESULT_FILE) as file:
                return words in file.read(MAX_RUN_FILE_BYTES)
        except OSError:
            return False

    def forget(self) -> None:
        """Have the next question read the folders anew, however soon it comes."""
        self._forgotten += 1
        self._looked = float("-inf")

    def refresh(self, only: str = "") -> None:
        """Bring the database up to date with the folders that have changed, at most once a second; with `only`, for
        that run, and at once."""
        with self._lock:
            if not only and time.monotonic() - self._looked < FOLDER_LIST_INTERVAL_S:
                return
            forgotten = self._forgotten
            rows = self._store.read("SELECT id, seen FROM runs WHERE ? IN ('', id)", only)
            known = {row["id"]: row["seen"] for row in rows}
            ids = [only] if only else self._ids()
            changed = []
            for id in ids:
                seen = _folder_fingerprint(self.folder / id)
                if seen and known.get(id) != seen:
                    first = read_first_event(self.folder / id)
                    half_written = first is None and EVENTS_FILE in seen  # such a folder is read again next time
                    changed.append(("" if half_written else seen, self._made(id, first)))
            there = set(ids)
            gone = [] if only else [id for id in known if id not in there]
            if changed or gone:
                values = ", ".join("?" for _ in ("seen", *_RUN_COLUMNS.split(",")))
                entry = f"INSERT OR REPLACE INTO runs (seen, {_RUN_COLUMNS}) VALUES ({values})"
                with self._store.write() as db:
                    db.executemany(entry, [(seen, *row) for seen, row in changed])
                    db.executemany("DELETE FROM runs WHERE id = ?", [(id,) for id in gone])
            if not only:
                self._looked = time.monotonic()
                if self._forgotten != forgotten:  # `forget` was called meanwhile: the list may lack a new run
                    self._looked = float("-inf")

    def _ids(self) -> list[str]:
        with os.scandir(self.folder) as entries:
            return [e.name for e in entries if RUN_FOLDER_NAME.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]

    def _made(self, id: str, first: RunStarted | None) -> tuple[str | float | None, ...]:
        """The row of a run for the database, in the order of _RUN_COLUMNS."""
        path = self.folder / id
        result = read_json(path / RESULT_FILE)
        by = read_started_file(path)
        told = finite_number(first.time if first else by.get("at"))
        began = told if told and 0 < told < MAX_UNIX_TIME_S else path.lstat().st_mtime
        nodes = first.nodes if first else ()
        goes_on = by and _is_run_result(result) and (begins_again(path, by) or is_launch_left_running(result))
        return (
            id,
            began,
            finite_number(result.get("seconds")),
            first.playbook if first else "",
            first.inventory if first else "",
            "" if goes_on else _text_or_empty(result.get("verdict")),
            _text_or_empty(result.get("stopped_at")),
            _blank_padded_words(_text_tuple(result.get("causes"))),
            _blank_padded_words(nodes),
            _text_or_empty(by.get("person")),
            first.run_id if first else "",
            _text_or_empty(by.get("group")),
        )


_RUN_COLUMNS = "id, began, seconds, playbook, inventory, verdict, stopped_at, causes, nodes, person, job, run_group"


def read_started_file(path: Path) -> Mapping[str, Any]:
    """The content of STARTED_FILE in this run folder; empty for a run that was not started from a page."""
    return read_json(path / STARTED_FILE)


def begins_again(path: Path, by: Mapping[str, Any]) -> bool:
    """Whether the result in this folder no longer counts, since the run begins again. `by` is the content of
    STARTED_FILE."""
    return by.get("begins_again") == result_mark(path) != 0


def result_mark(path: Path) -> int:
    """A number for the result that is in this folder now, which no earlier or later result has; 0 without a result."""
    status = _file_status(path / RESULT_FILE)
    return status.st_mtime_ns if status else 0


def _file_status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:
        return None


def is_launch_left_running(document: Mapping[str, Any]) -> bool:
    """Whether the launch in this document (of a run) was left running by itself, or has no recorded end."""
    stages = document["stages"]
    if not stages or stages[-1].get("check") != "launch":
        return False
    outcomes = stages[-1]["outcomes"]
    return not outcomes or any(isinstance(one.get("metrics"), dict) and "job" in one["metrics"] for one in outcomes)


def read_first_event(path: Path) -> RunStarted | None:
    """The first event of the run in this folder; None if it cannot be read."""
    try:
        with open_file_below(path, EVENTS_FILE) as file:
            event = event_from_json(file.readline(1 << 22).decode("utf-8", "replace"))
    except (OSError, ValueError):
        return None
    return event if isinstance(event, RunStarted) else None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no such file, or it holds something else."""
    return read_json_below(path.parent, path.name, most=MAX_RUN_FILE_BYTES)


def _is_run_result(found: dict[str, Any]) -> bool:
    """Whether the content of a `result.json` has the form that pages need: a file from elsewhere may hold anything."""
    stages = found.get("stages")
    return isinstance(found.get("nodes", {}), dict) and isinstance(stages, list) and all(map(_is_stage, stages))


def _is_stage(stage: Any) -> bool:
    if not isinstance(stage, dict) or not {"name", "verdict", "seconds"} <= stage.keys():
        return False
    outcomes = stage.get("outcomes")
    return isinstance(stage["seconds"], int | float) and isinstance(outcomes, list) and all(map(_is_outcome, outcomes))


def _is_outcome(outcome: Any) -> bool:
    if not isinstance(outcome, dict) or not {"node", "verdict", "proof"} <= outcome.keys():
        return False
    findings = outcome.get("findings")
    keys = {"cause", "says", "remedy", "evidence"}
    return isinstance(findings, list) and all(isinstance(one, dict) and keys <= one.keys() for one in findings)


def _folder_fingerprint(path: Path) -> str:
    """A text that changes whenever a run folder has to be read again; empty for a folder that is no run's."""
    found = []
    for name in (EVENTS_FILE, RESULT_FILE, STARTED_FILE):
        if status := _file_status(path / name):
            # Only the first line of the events is read, so their growth changes nothing.
            found.append(name if name == EVENTS_FILE else f"{name} {status.st_size} {status.st_mtime_ns}")
    return " ".join(found)


def _run_row(row: Any) -> RunRow:
    values = list(row)
    values[7], values[8] = tuple(values[7].split()), tuple(values[8].split())
    return RunRow(*values)


def _sql_condition(wanted: RunFilter) -> tuple[str, list[str | float]]:
    """The condition of a search in SQL, and its values."""
    verdict = "" if wanted.verdict == "running" else wanted.verdict
    asked: list[tuple[object, str, str | float]] = [
        (wanted.host, "nodes LIKE ? ESCAPE '\\'", f"% {_escape_like(wanted.host)}%"),
        (wanted.cause, "causes LIKE ? ESCAPE '\\'", f"% {_escape_like(wanted.cause)}%"),
        (wanted.playbook, "playbook || '\n' || inventory LIKE ? ESCAPE '\\'", f"%{_escape_like(wanted.playbook)}%"),
        (wanted.person, "person = ?", wanted.person),
        (wanted.group, "run_group = ?", wanted.group),
        (wanted.verdict, "verdict = ?", verdict),
        (wanted.since is not None, "began >= ?", wanted.since or 0.0),
        (wanted.until is not None, "began < ?", wanted.until or 0.0),
    ]
    chosen = [(condition, value) for given, condition, value in asked if given]
    return " AND ".join(["1", *(condition for condition, _ in chosen)]), [value for _, value in chosen]


def _escape_like(text: str) -> str:
    """A text for SQL's LIKE, in which it matches only itself."""
    return re.sub(r"([\\%_])", r"\\\1", text)


def _blank_padded_words(words: tuple[str, ...]) -> str:
    """Words as one text for the database, with a blank before and behind each, so that LIKE finds whole words."""
    return "".join(f" {word}" for word in words if not re.search(r"\s", word)) + " "


def _text_tuple(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else ()


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def _replaced_nodes_by_spare(folder: Path) -> dict[str, str]:
    """The spares that took a node's place, each with that node, from the events in a run folder."""
    found = {}
    with contextlib.suppress(OSError), open_file_below(folder, EVENTS_FILE) as file:
        while file.tell() < MAX_RUN_FILE_BYTES and (line := file.readline(1 << 20)):
            if b'"spare"' not in line:
                continue
            with contextlib.suppress(ValueError):
                event = event_from_json(line.decode())
                if isinstance(event, Progress) and event.node and isinstance(taken := event.data.get("spare"), dict):
                    found[event.node] = str(taken.get("for"))
    return found
