"""The processes of runs that people start from a page. Each run is a process in a session of its own, which outlives
this server, and which the next server finds again.

Everything is done by commands that a person could type: `runbook run -i GROUP.yml`, `runbook stop JOB -i GROUP.yml`. A
job that a run left running is followed by `runbook attach --run-dir` until it has ended, by this server or the next.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from runbook.engine.run_folder import JOB_ENDING_FILE, new_run_id
from runbook.model.events import RunStarted
from runbook.model.run_files import EVENTS_FILE
from runbook.model.safe_files import write_file_below
from runbook.node.proc import process_stat
from runbook.serve.run_folders import (
    STARTED_FILE,
    NoRun,
    RunFilter,
    Runs,
    begins_again,
    is_launch_left_running,
    read_first_event,
    read_json,
    read_started_file,
    result_mark,
)
from runbook.serve.store import Store
from runbook.transport.agent import SERVER_GONE

log = logging.getLogger("runbook.serve")

CONSOLE_FILE = "console.txt"
"""The file in a run folder with the output of the run's commands."""
GROUP = "group.yml"
"""The group's file as it was when the run was started: its ranks are on those nodes, even if the file changes."""
FOLLOWER_FILE = "follower.json"
"""The file in a run folder that names the process which follows the job that the run left running."""
FOLLOWER_RESTART_INTERVALS_S = (1.0, 5.0, 15.0, 60.0)
"""The pauses before a follower that has ended too early is started again."""
MAX_RESUMED_RUN_AGE_S = 600.0
"""A run whose checks ended only because the server ended begins again, unless it was started longer ago than this."""
AGENTS_READY_TIMEOUT_S = 60.0
"""How long a run that begins again waits for the agents of its nodes."""
MAX_RUN_STARTS = 3
"""How often a run may begin in all."""
_POLL_INTERVAL_S = 0.3


class Busy(Exception):
    """The group has a run that has not ended."""

    def __init__(self, id: str) -> None:
        super().__init__(f"it runs already: {id}")


class NotRunning(Exception):
    """No process of this run can be ended."""


class Processes:
    """The processes that this server, and servers before it, started for runs. A process is known by its pid and the
    time of its start, so that no other process is taken for it."""

    def __init__(
        self,
        data: Path,
        runs: Runs,
        changed: Callable[[str], object],
        ready: Callable[[Sequence[str]], bool] = lambda nodes: True,
    ) -> None:
        """`changed` reports a topic to open pages. `ready` tells whether all of these nodes that have an agent can be
        reached."""
        self._data = data
        self._ready = ready
        self._runs = runs
        self._changed = changed
        self._lock = threading.Lock()
        self._watched: set[str] = set()
        self._closing = threading.Event()

    def adopt(self) -> None:
        """Watch the runs of an earlier server that have not ended, and begin those again that ended only because that
        server ended."""
        recent = RunFilter(cause=SERVER_GONE, since=time.time() - MAX_RESUMED_RUN_AGE_S)
        cut_off = [row.id for row in self._runs.search(recent, most=100)[0] if self._cut_off(row.id)]
        for id in [*self._runs.without_end(), *cut_off]:
            about = read_started_file(self._runs.folder / id)
            if id in cut_off:  # written before anybody can ask for the run's state
                folder = self._runs.folder / id
                write_file_below(folder, STARTED_FILE, data=json.dumps({**about, "begins_again": result_mark(folder)}))
            if id in cut_off or self._is_there(id) or is_launch_left_running(self._runs.document(id)):
                self._watch(id, str(about.get("group")), str(about.get("person") or ""))

    def close(self) -> None:
        """Start and follow nothing more. Runs that go on are left alone."""
        self._closing.set()

    def start(self, group: str, path: Path, person: str, more: Sequence[str] = ()) -> str:
        """Start a run of the group's checks and launch; returns the id of the run. `path` is the group's file, `more`
        are further arguments of `runbook run`. Raises Busy if the group has a run that has not ended."""
        with self._lock:
            for id in self.running(group):
                raise Busy(id)
            id = new_run_id()
            folder = self._runs.folder / id
            folder.mkdir(mode=0o700)
            write_file_below(folder, GROUP, data=path.read_text(encoding="utf-8"))
            inventory = os.path.relpath(path, self._data)  # what people see
            words = ["run", "-i", inventory, "--run-dir", str(folder), *more]
            about = {"version": 1, "person": person, "group": group, "at": time.time(), "command": ["runbook", *words]}
            self._watch(id, group, person, self._begin(folder, about))
        return id

    def _begin(self, folder: Path, about: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Start the run's own process, and write into its folder which one it is."""
        process = self._child(about["command"][1:], folder / CONSOLE_FILE, about["person"])
        of_process = {"pid": process.pid, "began": process_start_mark(process.pid), "begun": about.get("begun", 0) + 1}
        try:
            write_file_below(folder, STARTED_FILE, data=json.dumps({**about, **of_process}))
        except OSError:
            process.terminate()  # nobody could find it, or end it
            raise
        return process

    def _cut_off(self, id: str) -> bool:
        """Whether a run ended before its launch because its server ended, and is to begin again. It is not if a person
        ended it, if it began too long ago, or if it has begun MAX_RUN_STARTS times."""
        folder, document = self._runs.folder / id, self._runs.document(id)
        about = read_started_file(folder)
        return (
            SERVER_GONE in document.get("causes", ())
            and not is_launch_left_running(document)
            and isinstance(about.get("command"), list)
            and about.get("begun", 1) < MAX_RUN_STARTS
            and time.time() - about.get("at", 0.0) < MAX_RESUMED_RUN_AGE_S
            and not (folder / JOB_ENDING_FILE).exists()
        )

    def _begin_again(self, id: str) -> subprocess.Popen[bytes] | None:
        """Begin a run again in the same folder, with the group's file as it was; the files that it wrote before are
        moved aside there. Returns None if this server ends first, or somebody ends the run."""
        folder = self._runs.folder / id
        about = dict(read_started_file(folder))
        about["begins_again"] = result_mark(folder)
        write_file_below(folder, STARTED_FILE, data=json.dumps(about))
        self.tell(id, str(about.get("group")))
        self._await_agents(id)
        words = list(about["command"])
        words[words.index("-i") + 1] = str(folder / GROUP)
        with self._lock:  # `end` comes either before the run begins again, or when its process is there to be ended
            if self._closing.is_set() or (folder / JOB_ENDING_FILE).exists():
                return None
            return self._begin(folder, {**about, "command": words})

    def _await_agents(self, id: str) -> None:
        """Wait up to AGENTS_READY_TIMEOUT_S for the agents of a run's nodes: after a start of this server they have yet
        to call."""
        first = read_first_event(self._runs.folder / id)
        deadline = time.monotonic() + AGENTS_READY_TIMEOUT_S
        while first and not self._ready(first.nodes) and time.monotonic() < deadline and not self._closing.is_set():
            self._closing.wait(_POLL_INTERVAL_S)

    def running(self, group: str = "") -> list[str]:
        """The ids of runs that were started from a page and have not ended: of this group, or of all."""
        return [id for id in self._runs.without_end(group) if self.lives(id)]

    def lives(self, id: str) -> bool:
        """Whether a run that was started from a page goes on: its own process, or the job that it left running."""
        return id in self._watched or self._is_there(id)

    def _is_there(self, id: str) -> bool:
        """Whether the run's own process still lives."""
        return _is_process_alive(read_started_file(self._runs.folder / id))

    def end(self, id: str, person: str, *, now: bool = False) -> str:
        """Stop a run, or kill it (`now`); returns a sentence about what was done. Raises NotRunning.

        While the run's own process lives, it gets one signal: it ends the ranks with their grace, or at once as soon as
        the file JOB_ENDING_FILE says so. A job that was left running is ended by `runbook stop`.
        """
        folder = self._runs.path(id)
        with self._lock:
            about, first = read_started_file(folder), read_first_event(folder)
            is_there = _is_process_alive(about)
            if not is_there and (first is None or not isinstance(about.get("group"), str)):
                raise NotRunning(id)
            its = {"pid": about["pid"], "began": about["began"]} if is_there else {}
            asked = read_json(folder / JOB_ENDING_FILE)
            wish = {"person": person, "at": time.time(), "now": now, **its}
            write_file_below(folder, JOB_ENDING_FILE, data=json.dumps(wish))
            if is_there:
                if any(asked.get(key) != value for key, value in its.items()):
                    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                        os.kill(about["pid"], signal.SIGTERM)
                how = "its ranks at once" if now else "with the grace of its ranks"
                return f"it has been asked to end, {how}"
        assert first is not None
        self._stop(folder, first, person, now=now)
        return f"it is being stopped; the output of that is in {CONSOLE_FILE}"

    def _stop(self, folder: Path, first: RunStarted, person: str, *, now: bool) -> None:
        """Start `runbook stop` for a job that a run left running."""
        words = ["stop", first.run_id, "-i", _inventory_path_of_run(folder, first), *(["--now"] if now else [])]
        process = self._child(words, folder / CONSOLE_FILE, person)
        threading.Thread(target=process.wait, name=f"stop {folder.name}", daemon=True).start()  # or it stays a zombie

    def await_end(self, id: str, until: float) -> bool:
        """Wait for a run to end, at most until this time (in seconds since 1970), and then for the agents of its nodes.
        False if this server ends first."""
        while self.lives(id) and time.time() < until and not self._closing.is_set():
            self._closing.wait(_POLL_INTERVAL_S)
        self._await_agents(id)
        return not self._closing.is_set()

    def _child(self, words: Sequence[str], console: Path, person: str) -> subprocess.Popen[bytes]:
        """Start a command of runbook that outlives this server; its output is appended to the file `console`."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(console, flags, 0o600), "wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "runbook", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # nothing that ends this server ends a run
                cwd=self._data,
                env={**os.environ, "RUNBOOK_DATA": str(self._data), "RUNBOOK_PERSON": person},
            )

    def _watch(self, id: str, group: str, person: str, process: subprocess.Popen[bytes] | None = None) -> None:
        """Watch a run in a thread of its own: report to pages when the run has written something, begin it again if it
        was cut off, follow the job that it leaves running, and report its end."""
        folder, written = self._runs.folder / id, -1

        def look(process: subprocess.Popen[bytes] | None, about: Callable[[], Mapping[str, Any]]) -> None:
            nonlocal written
            while process.poll() is None if process else _is_process_alive(about()):
                self._closing.wait(_POLL_INTERVAL_S)
                with contextlib.suppress(OSError):
                    size = _written_bytes(folder)
                    if size != written:
                        written = size
                        self._changed(f"runs/{id}")
                if self._closing.is_set():
                    return

        def watch() -> None:
            look(process, lambda: read_started_file(folder))
            while not self._closing.is_set() and self._cut_off(id):
                look(self._begin_again(id), lambda: read_started_file(folder))
            asked, first, about = (
                read_json(folder / JOB_ENDING_FILE),
                read_first_event(folder),
                read_started_file(folder),
            )
            if asked and begins_again(folder, about):  # somebody ended it before it began again: its result counts
                kept = {key: value for key, value in about.items() if key != "begins_again"}
                write_file_below(folder, STARTED_FILE, data=json.dumps(kept))
            if asked and first and is_launch_left_running(self._runs.document(id)) and not self._closing.is_set():
                # It was asked to end when its own process was about to end by itself, or when no server was there.
                self._stop(folder, first, str(asked.get("person")), now=asked.get("now") is True)
            tries = 0
            while not self._closing.is_set() and is_launch_left_running(self._runs.document(id)):
                self.tell(id, group)
                look(
                    None if _is_process_alive(read_json(folder / FOLLOWER_FILE)) else self._follower(id, person),
                    lambda: read_json(folder / FOLLOWER_FILE),
                )
                if is_launch_left_running(self._runs.document(id)):
                    self._closing.wait(FOLLOWER_RESTART_INTERVALS_S[min(tries, len(FOLLOWER_RESTART_INTERVALS_S) - 1)])
                    tries += 1

        def whole() -> None:
            try:
                watch()
            except (NoRun, OSError) as error:
                log.warning("run %s is not followed any more: %s", id, error)
            finally:
                self._watched.discard(id)
                self.tell(id, group)

        self._watched.add(id)
        self.tell(id, group)
        threading.Thread(target=whole, name=f"run {id}", daemon=True).start()

    def _follower(self, id: str, person: str) -> subprocess.Popen[bytes] | None:
        """Start the process that follows the job which a run left running; None if the run's folder names no job."""
        folder = self._runs.path(id)
        first = read_first_event(folder)
        if first is None:
            return None
        words = ["attach", first.run_id, "-i", _inventory_path_of_run(folder, first), "--run-dir", str(folder)]
        process = self._child(words, folder / CONSOLE_FILE, person)
        write_file_below(
            folder, FOLLOWER_FILE, data=json.dumps({"pid": process.pid, "began": process_start_mark(process.pid)})
        )
        return process

    def tell(self, id: str, group: str) -> None:
        """Report to pages that something about a run, and so about its group and the fleet, has changed."""
        if self._closing.is_set():
            return
        self._runs.forget()
        for topic in (f"runs/{id}", "runs", f"groups/{group}", "fleet"):
            self._changed(topic)


def _is_process_alive(about: Mapping[str, Any]) -> bool:
    """Whether the recorded process (`pid`, `began`) still lives, and no other process has its number."""
    pid, began = about.get("pid"), about.get("began")
    return isinstance(pid, int) and pid > 1 and bool(began) and process_start_mark(pid) == began


def _inventory_path_of_run(folder: Path, first: RunStarted) -> str:
    """The path of the inventory by which a run's job is reached."""
    frozen = folder / GROUP
    return str(frozen) if frozen.is_file() else first.inventory


def _written_bytes(folder: Path) -> int:
    """The bytes that a run has written so far, into its logs and events: a change of it updates pages."""
    logs = sum(entry.stat().st_size for entry in (folder / "logs").rglob("*") if entry.is_file())
    return logs + (folder / EVENTS_FILE).stat().st_size


def process_start_mark(pid: int) -> str:
    """When the process with this pid began, in the kernel's ticks since boot; empty if there is none, or it is a
    zombie."""
    its = process_stat(pid)
    return str(its.born) if its is not None and its.lives else ""


RESTART_DEADLINE_S = 600.0
"""How long after somebody asked for a restart the group may still be started."""

StartGroup = Callable[[str, str], object]
"""A function that starts a group, the first argument, in the name of a person, the second."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A request of a person: to start a group again once this run of the group is over. `at` is when the person asked,
    in seconds since 1970."""

    run: str
    group: str
    person: str
    at: float


class Restarts:
    """Starts groups again once a run of theirs is over. Each request is a row of the database, so that the next server
    carries it out if this one ends first. May be used from several threads."""

    def __init__(self, store: Store, processes: Processes) -> None:
        self._store = store
        self._processes = processes

    def ask(self, run: str, group: str, person: str, start: StartGroup) -> None:
        """End a run, and `start` its group once that is over, in the background."""
        asked = Restart(run, group, person, time.time())
        with self._store.write() as db:
            db.execute("DELETE FROM restarts WHERE run = ? AND why IS NOT NULL", (run,))
            new = db.execute("INSERT OR IGNORE INTO restarts VALUES (?, ?, ?, ?, NULL)", astuple(asked)).rowcount
        try:
            with contextlib.suppress(NotRunning):
                self._processes.end(run, person)
        except BaseException:
            if new:  # the run was not asked to end, so the request is withdrawn
                with self._store.write() as db:
                    db.execute("DELETE FROM restarts WHERE run = ?", (run,))
            raise
        if new:
            self._follow(asked, start)

    def adopt(self, start: StartGroup) -> None:
        """Take over the requests that an earlier server got."""
        for row in self._store.read("SELECT run, run_group, person, at FROM restarts WHERE why IS NULL"):
            self._follow(Restart(*row), start)

    def pending(self, run: str) -> bool:
        """Whether the group of this run is to be started again once the run is over."""
        return bool(self._store.read("SELECT 1 FROM restarts WHERE run = ? AND why IS NULL", run))

    def why_not(self, run: str) -> str:
        """Why the group was not started again after this run, though somebody asked for it; otherwise empty."""
        rows = self._store.read("SELECT why FROM restarts WHERE run = ? AND why IS NOT NULL", run)
        return rows[0]["why"] if rows else ""

    def _follow(self, asked: Restart, start: StartGroup) -> None:
        """Carry out a request in a thread of its own, once the run is over."""

        def again() -> None:
            if not self._processes.await_end(asked.run, asked.at + RESTART_DEADLINE_S):
                return
            why = _try_restart(asked, start)
            with self._store.write() as db:
                db.execute("DELETE FROM restarts WHERE run = ?", (asked.run,))
                if why:
                    db.execute("INSERT INTO restarts VALUES (?, ?, ?, ?, ?)", (*astuple(asked), why))
            self._processes.tell(asked.run, asked.group)

        threading.Thread(target=again, name=f"restart {asked.run}", daemon=True).start()


def _try_restart(asked: Restart, start: StartGroup) -> str:
    """Start the group; returns why that failed, or an empty text."""
    late_s = time.time() - asked.at
    if late_s > RESTART_DEADLINE_S:
        return f"{asked.person} asked for it {late_s:.0f} s ago, which is too long ago"
    try:
        start(asked.group, asked.person)
    except Exception as error:  # noqa: BLE001  no caller waits for an answer: the group's page shows the error
        log.warning("%s is not started again: %s", asked.group, error)
        return str(error) or type(error).__name__
    return ""
