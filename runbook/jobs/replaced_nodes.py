"""Nodes whose places spares have taken, and what may still live there of an earlier attempt: a node that did not answer
when it was replaced has ranks that could not be ended. They are ended, their logs fetched and their files removed once
it answers again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from runbook.jobs.follow_logs import kept_of
from runbook.jobs.known_jobs import Cluster, clean, living, stop
from runbook.jobs.logs import job_secrets
from runbook.jobs.stop_attempt import drain
from runbook.launch.ranks import narrow
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory

LEAVE_S = 5.0
"""How long the end of the `with` block waits for an answer that is under way. What is not ended then is reported as
left."""
AGAIN_S = 30.0
"""How long to wait before they are asked again."""


class ReplacedNodes:
    """Of the job `id`, whose run has its folder at `run_dir`. They are asked now and then while the `with` block
    lasts. `say` is called with what happens, as in the events of a run."""

    def __init__(self, inventory: Inventory, id: str, run_dir: Path, say: Callable[..., None], forks: int) -> None:
        self._inventory = inventory
        self._id = id
        self._run_dir = run_dir
        self._say = say
        self._forks = forks
        self._left: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="replaced", daemon=True)

    def add(self, names: Iterable[str]) -> None:
        self._left = {*self._left, *names}

    def __enter__(self) -> ReplacedNodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(LEAVE_S)

    @property
    def left(self) -> tuple[str, ...]:
        """Those that may still have something of it."""
        return tuple(sorted(self._left))

    def _ask_on(self) -> None:
        while not self._over.wait(AGAIN_S):
            self.ask()

    def ask(self) -> None:
        """Ask each of them once, unless the thread that asks them now and then still does."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            return
        for name in self.left:
            with contextlib.suppress(Unreachable):
                if self._over_on(name):
                    self._left.discard(name)

    def _over_on(self, name: str) -> bool:
        """Whether nothing of the job is left on a node. Raises Unreachable."""
        node = self._inventory.node(name)
        with Cluster(narrow(self._inventory, [node]), forks=self._forks) as cluster:
            try:
                job = cluster.job(self._id)
                if living(job):
                    ended = f"what ran there of {job.attempt} is ended: it was replaced"
                    self._say(f"{name} answers again, and {ended}", name)
                    stop(cluster, job)
                    job = cluster.job(self._id)
            except FilesWrong:
                return True  # it has been cleaned up
            secrets = job_secrets(cluster, job)
            kept = kept_of(cluster, job, self._run_dir, lambda *_: None, secrets, goes_on=True)
            return not drain(kept) and clean(cluster, job).removed == [name]
