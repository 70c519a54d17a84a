"""Follow a job until it has ended, however often its nodes fall silent meanwhile: only a rank that failed ends the others.

A node that is not reached is asked again until it is. So whoever stands between us and the nodes, such as the server that
agents dial, may go away and come back: the ranks do not notice, and their logs come in full.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from runbook.checks.context import Facts
from runbook.jobs import ending
from runbook.jobs.crew import Crew
from runbook.jobs.follow import Tell, crew_of
from runbook.jobs.known import Cluster, KnownJob, serial_of
from runbook.jobs.logs import RankLogs
from runbook.jobs.secrets import job_secrets
from runbook.jobs.stop import clean
from runbook.jobs.verdict import judge_attempt
from runbook.jobs.watch import End, Fetching, watch
from runbook.model.errors import Unreachable
from runbook.model.inventory import Inventory
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding, Outcome, Verdict

AGAIN_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""How long to wait before nodes that were not reached are asked again."""
WITHOUT_S = 15.0
"""How long the others are followed before those that are not reached are asked again."""
MISSING_S = 120.0
"""How long a job that has failed waits for nodes that may still have logs of it."""

Say = Callable[..., object]


def outlast(
    inventory: Inventory, id: str, run_dir: Path, *, tell: Tell, say: Say, leaving: threading.Event, forks: int = 64
) -> list[Outcome] | None:
    """One outcome for each node of the job, once it has ended; None where we are `leaving` before that. `say` is told what
    happens meanwhile: text, node, rank and facts, as in the events of a run. Its logs go on in
    `run_dir`, and its files are removed from nodes of which all logs are here. Raises FilesWrong where no node knows it."""
    following, tries = _Following(inventory, id, run_dir, tell, say, leaving), 0
    while not leaving.is_set():
        before = time.monotonic()
        with Cluster(inventory, forks=forks) as cluster, contextlib.suppress(Unreachable):
            outcomes = following.once(cluster)
            if outcomes is not None:
                return outcomes
        tries = 0 if time.monotonic() - before > WITHOUT_S else tries + 1
        leaving.wait(AGAIN_S[min(tries, len(AGAIN_S) - 1)])
    return None


class _Following:
    """What is kept from one look at the nodes to the next."""

    def __init__(
        self, inventory: Inventory, id: str, run_dir: Path, tell: Tell, say: Say, leaving: threading.Event
    ) -> None:
        self._inventory = inventory
        self._id = id
        self._run_dir = run_dir
        self._tell = tell
        self._say = say
        self._leaving = leaving
        self._logs: RankLogs | None = None
        self._silent: set[str] = set()
        self._failed: float | None = None

    def once(self, cluster: Cluster) -> list[Outcome] | None:
        """Follow those that answer; the outcomes where it has ended. Raises Unreachable, FilesWrong."""
        job = cluster.job(self._id)
        self._say_silent({name: error.says for name, error in cluster.unreached.items() if name in job.nodes})
        crew = self._crew(cluster, job)
        lost = dict.fromkeys(job.absent, time.monotonic())

        def on_loss(node: str, error: Unreachable) -> None:
            lost[node] = time.monotonic()
            self._say_silent({node: error.says})

        def enough() -> bool:
            return self._leaving.is_set() or any(time.monotonic() - at > WITHOUT_S for at in lost.values())

        with Fetching(crew):
            end = watch(crew, stopping=enough, deadline=math.inf, on_loss=on_loss)
            frozen: Mapping[str, Facts] = {}
            if end.kind == "failed" and not _stopped(crew):
                frozen = ending.freeze(crew)
                grace_s = float(job.about.get("grace_s") or 30.0)
                ending.end(crew, grace_s=grace_s, why="another rank failed", hurry=self._leaving.is_set)
        if end.kind not in ("finished", "failed") or self._leaving.is_set():
            return None
        left = ending.drain(crew)
        if (left or lost) and not self._waited_enough(end):
            return None
        outcomes = {one.node: one for one in self._outcomes(crew, end, frozen)}
        self._say("", None, None, {"ends": {"number": serial_of(job.attempt), "processes": crew.ends()}})
        if not left and not lost:
            clean(cluster, job)
        return [outcomes.get(name) or _untold(name) for name in job.nodes]

    def _crew(self, cluster: Cluster, job: KnownJob) -> Crew:
        """The logs are those of the look before, which are here already."""
        crew = crew_of(cluster, job, self._run_dir, self._tell, job_secrets(cluster, job), goes_on=True)
        if self._logs is not None and self._logs.folder == crew.logs.folder:
            crew.logs = self._logs
        self._logs = crew.logs
        return crew

    def _say_silent(self, silent: dict[str, str]) -> None:
        for name, says in silent.items():
            if name not in self._silent:
                self._say(f"{name} is not heard, and what runs there goes on: {says}", name)
        self._silent |= set(silent)

    def _waited_enough(self, end: End) -> bool:
        """For what a node still has of a job that has failed: it may never come back. One that ended well is waited for."""
        if end.kind != "failed":
            return False
        self._failed = self._failed or time.monotonic()
        return time.monotonic() - self._failed > MISSING_S

    def _outcomes(self, crew: Crew, end: End, frozen: Mapping[str, Facts]) -> list[Outcome]:
        if end.kind == "failed" and not _stopped(crew):
            return judge_attempt(crew, end, frozen)
        logs = (f"logs: {crew.logs.folder}",)
        if end.kind == "failed":
            why = Finding("terminated-from-outside", "the job was stopped by whoever ran it", "run it again", logs)
            return [Outcome.unknown(name, why) for name in crew.nodes]
        times = [(member.started, member.ended) for member in crew.members]
        seconds = max(ended or 0.0 for _, ended in times) - min(started or 0.0 for started, _ in times)
        ranks = sum(len(member.place.ranks) for member in crew.members)
        proof = f"{ranks} ranks ended with code 0 after {seconds_text(seconds)}"
        return [Outcome.passed(name, proof, metrics={"seconds": round(seconds, 3)}) for name in crew.nodes]


def _stopped(crew: Crew) -> bool:
    """Whether those that did not end well were told to, by `runbook stop`."""
    failed = [member for member in crew.members if member.failed]
    return bool(failed) and all(str(member.journal.get("why") or "").startswith("signal") for member in failed)


def _untold(node: str) -> Outcome:
    says = f"the job has failed, and for {MISSING_S:g} s {node} has told nothing of its part"
    fix = (
        f"see that {node} is reached: `runbook ps` shows what lives there, `runbook logs` the rest of what was written"
    )
    return Outcome(node, Verdict.UNKNOWN, findings=(Finding("insufficient-evidence", says, fix),))
