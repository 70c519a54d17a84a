"""Restarts: a group is started again once a run of it is over. What was asked for is kept, so that the next server does
it where this one ends before."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

from runbook.serve.run_processes import NotRunning, Processes
from runbook.serve.store import Store

log = logging.getLogger("runbook.serve")

STILL_S = 600.0
"""How long after it was asked for a restart may still start something."""

StartGroup = Callable[[str, str], object]
"""Starts a group, in the name of a person."""


@dataclass(frozen=True, slots=True)
class Restart:
    """A group that this person wants started again once this run of it is over. `at`: seconds since 1970."""

    run: str
    group: str
    person: str
    at: float


class Restarts:
    """May be used from several threads."""

    def __init__(self, store: Store, processes: Processes) -> None:
        self._store = store
        self._processes = processes

    def ask(self, run: str, group: str, person: str, start: StartGroup) -> None:
        """End a run, and `start` its group once that is over, in the background."""
        asked = Restart(run, group, person, time.time())
        with self._store.write() as db:
            db.execute("DELETE FROM restarts WHERE run = ? AND why IS NOT NULL", (run,))
            new = db.execute("INSERT OR IGNORE INTO restarts VALUES (?, ?, ?, ?, NULL)", astuple(asked)).rowcount
        with contextlib.suppress(NotRunning):
            self._processes.end(run, person)
        if new:
            self._follow(asked, start)

    def adopt(self, start: StartGroup) -> None:
        """Those that an earlier server was asked for."""
        for row in self._store.read("SELECT run, run_group, person, at FROM restarts WHERE why IS NULL"):
            self._follow(Restart(*row), start)

    def pending(self, run: str) -> bool:
        """Whether the group of this run is started again once it is over."""
        return bool(self._store.read("SELECT 1 FROM restarts WHERE run = ? AND why IS NULL", run))

    def why_not(self, run: str) -> str:
        """Why nothing was started again after this run, though somebody wanted it; else empty."""
        rows = self._store.read("SELECT why FROM restarts WHERE run = ? AND why IS NOT NULL", run)
        return rows[0]["why"] if rows else ""

    def _follow(self, asked: Restart, start: StartGroup) -> None:
        def again() -> None:
            if not self._processes.await_end(asked.run, asked.at + STILL_S):
                return
            why = _tried(asked, start)
            with self._store.write() as db:
                db.execute("DELETE FROM restarts WHERE run = ?", (asked.run,))
                if why:
                    db.execute("INSERT INTO restarts VALUES (?, ?, ?, ?, ?)", (*astuple(asked), why))
            self._processes.tell(asked.run, asked.group)

        threading.Thread(target=again, name=f"restart {asked.run}", daemon=True).start()


def _tried(asked: Restart, start: StartGroup) -> str:
    """Why the group was not started; empty where it was."""
    late_s = time.time() - asked.at
    if late_s > STILL_S:
        return f"{asked.person} wanted that {late_s:.0f} s ago"
    try:
        start(asked.group, asked.person)
    except Exception as error:  # noqa: BLE001  nobody waits for an answer any more: the group's page tells it
        log.warning("%s is not started again: %s", asked.group, error)
        return str(error) or type(error).__name__
    return ""
