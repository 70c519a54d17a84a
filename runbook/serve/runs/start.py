"""Runs that people start here: each a child process of its own session, which outlives this server and is found again.

Nothing is done that a command line cannot: `runbook run -i GROUP.yml`, `runbook stop JOB -i GROUP.yml`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from runbook.serve.runs.folders import STARTED, Runs, first_event, started

CONSOLE = "console.txt"
RESTART_S = 300.0
"""How long a restart waits for what ran before to end."""
_POLL_S = 0.3


class Busy(Exception):
    """The group has a run already."""


class NotRunning(Exception):
    """There is nothing of this run to end."""


class Processes:
    """Children of this server, and of those before it: by the number and the start of a process, so that no other is taken for one."""

    def __init__(self, data: Path, runs: Runs, changed: Callable[[str], object]) -> None:
        self._data = data
        self._runs = runs
        self._changed = changed
        self._lock = threading.Lock()

    def start(self, group: str, path: Path, person: str, more: Sequence[str] = ()) -> str:
        """Run the group's checks and its launch; the id of the run. Raises Busy where it has a run that is not over."""
        with self._lock:
            for id in self.running(group):
                raise Busy(id)
            id = time.strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(3)
            folder = self._runs.folder / id
            folder.mkdir(mode=0o700)
            words = ["run", "-i", str(path), "--run-dir", str(folder), *more]
            process = self._child(words, folder / CONSOLE)
            about = {"version": 1, "person": person, "group": group, "at": time.time(), "command": ["runbook", *words]}
            about |= {"pid": process.pid, "began": process_start(process.pid)}
            _write(folder / STARTED, json.dumps(about))
        self._watch(process, id, group)
        return id

    def running(self, group: str = "") -> list[str]:
        """Ids of runs started here, of this group or of all, whose process lives."""
        return [id for id in self._runs.without_end(group) if self.lives(id)]

    def lives(self, id: str) -> bool:
        """Whether the process of a run that was started here is there."""
        about = started(self._runs.folder / id)
        pid, began = about.get("pid"), about.get("began")
        return isinstance(pid, int) and pid > 1 and bool(began) and process_start(pid) == began

    def end(self, id: str, *, now: bool = False) -> str:
        """Stop a run, or kill it; what was done, in a sentence. Raises NotRunning.

        While its own process lives that is told: it ends the ranks with their grace, and at a second signal without. A
        launch that was left running is ended by `runbook stop`.
        """
        folder = self._runs.path(id)
        if self.lives(id):
            os.kill(started(folder)["pid"], signal.SIGTERM)
            if now:
                time.sleep(_POLL_S)
                with contextlib.suppress(ProcessLookupError):
                    if self.lives(id):
                        os.kill(started(folder)["pid"], signal.SIGTERM)
            return "it is told to end its ranks at once" if now else "it is told to end, with the grace of its ranks"
        first, group = first_event(folder), started(folder).get("group")
        if first is None or not isinstance(group, str):
            raise NotRunning(id)
        words = ["stop", first.run_id, "-i", first.inventory, *(["--now"] if now else [])]
        process = self._child(words, folder / CONSOLE)
        self._watch(process, id, group)
        return f"runbook {' '.join(words[:2])} was started; what it says is in {CONSOLE}"

    def restart(self, id: str, path: Path, person: str) -> None:
        """End a run and start its group again once that is over, in the background."""
        group = str(started(self._runs.path(id)).get("group"))
        with contextlib.suppress(NotRunning):
            self.end(id)

        def again() -> None:
            deadline = time.monotonic() + RESTART_S
            while self.lives(id) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            with contextlib.suppress(Busy, OSError):
                self.start(group, path, person)
            self._tell(id, group)

        threading.Thread(target=again, name=f"restart {id}", daemon=True).start()

    def _child(self, words: Sequence[str], console: Path) -> subprocess.Popen[bytes]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with os.fdopen(os.open(console, flags, 0o600), "wb") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "runbook", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # nothing that ends this server ends a run
                cwd=self._data,
                env={**os.environ, "RUNBOOK_DATA": str(self._data)},
            )

    def _watch(self, process: subprocess.Popen[bytes], id: str, group: str) -> None:
        """Say so when it has written something, and when it is over."""

        def watch() -> None:
            before = -1
            while process.poll() is None:
                time.sleep(_POLL_S)
                with contextlib.suppress(OSError):
                    size = (self._runs.folder / id / "events.jsonl").stat().st_size
                    if size != before:
                        before = size
                        self._changed(f"runs/{id}")
            self._tell(id, group)

        self._tell(id, group)
        threading.Thread(target=watch, name=f"run {id}", daemon=True).start()

    def _tell(self, id: str, group: str) -> None:
        self._runs.forget()
        for topic in (f"runs/{id}", "runs", f"groups/{group}", "fleet"):
            self._changed(topic)


def process_start(pid: int) -> str:
    """When the process of this number began, in the kernel's ticks since boot; empty where there is none, or it is a zombie."""
    try:
        told = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = told[told.rindex(b")") + 2 :].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)
