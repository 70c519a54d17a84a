"""Find the jobs on the nodes of an inventory, and their processes."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.checks.context import Facts
from runbook.checks.training.attempt import Place
from runbook.model.errors import FilesWrong, Problem, Unreachable
from runbook.model.inventory import Inventory, Node
from runbook.transport import ProgramNotStarted, Site

ASK_S = 20.0


@dataclass
class KnownJob:
    """A job as its nodes tell it. `folders` and `attempts` (journals by attempt) go by node; times are of the nodes' clocks."""

    id: str
    about: Facts
    folders: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, dict[str, list[Facts]]] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node that it was started on, in rank order."""
        return tuple(self.about.get("nodes") or self.folders)

    @property
    def absent(self) -> tuple[str, ...]:
        """Nodes of it that tell nothing: not in this inventory, not reached, or cleaned up."""
        return tuple(name for name in self.nodes if name not in self.folders)

    @property
    def attempt(self) -> str:
        """The latest attempt that any node knows."""
        return max((name for attempts in self.attempts.values() for name in attempts), default="attempt-01")

    @property
    def processes(self) -> list[Facts]:
        """The journals of the latest attempt, in rank order."""
        found = [journal for attempts in self.attempts.values() for journal in attempts.get(self.attempt, ())]
        return sorted(found, key=lambda journal: (journal["ranks"], journal["name"]))

    @property
    def alive(self) -> list[Facts]:
        """Journals, of whatever attempt, of which something lives."""
        every = [j for attempts in self.attempts.values() for journals in attempts.values() for j in journals]
        return [journal for journal in every if journal["lives"] or journal["keeper_lives"]]

    @property
    def state(self) -> str:
        """running, degraded (a part of it lives), failed, stopped (by somebody), finished, or unknown, where a node tells
        nothing."""
        now = self.processes
        living = [journal for journal in now if journal["lives"]]
        if living and len(living) == len(now) and not self.absent:
            return "running"
        if living:
            return "degraded"
        bad = [journal for journal in now if journal["state"] != "ended" or journal["code"] != 0]
        if bad:
            return "stopped" if all(str(journal.get("why") or "").startswith("signal") for journal in bad) else "failed"
        return "unknown" if self.absent or not now else "finished"

    @property
    def places(self) -> list[Place]:
        return [
            Place(
                j["name"],
                j["node"],
                int(j["local_rank"] or 0),
                tuple(j["ranks"]),
                tuple(j.get("gpus") or ()),
                tuple(
                    Place(name, j["node"], local, (rank,))
                    for local, (name, rank) in enumerate(zip(j.get("each") or (), j["ranks"], strict=False))
                ),
            )
            for j in self.processes
        ]


class Cluster:
    """The nodes of an inventory, held for as long as one command takes."""

    def __init__(self, inventory: Inventory, *, forks: int = 64) -> None:
        self.inventory = inventory
        self.site = Site(f"look-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}", forks=forks)

    def __enter__(self) -> Cluster:
        self.site.open(self.inventory.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        self.site.close()

    @property
    def unreached(self) -> Mapping[str, Unreachable]:
        return self.site.failures

    def ask(
        self, order: Facts, folders: Mapping[str, str], *, timeout_s: float = ASK_S
    ) -> dict[str, Facts | BaseException]:
        """The same order for a job's folder on every node that has one."""

        def one(node: Node) -> Facts:
            return self.site.sessions[node.name].call(
                "job", {**order, "folder": folders[node.name]}, timeout_s=timeout_s
            )

        nodes = [self.inventory.node(name) for name in folders if name in self.site.sessions]
        return dict(self.site.each(nodes, one, timeout_s=timeout_s + 5.0))

    def jobs(self) -> list[KnownJob]:
        """Every job that some node knows, the latest last."""

        def one(node: Node) -> Facts:
            return self.site.sessions[node.name].call("job", {"do": "list", "workdir": node.workdir}, timeout_s=ASK_S)

        nodes = [node for node in self.inventory.nodes if node.name in self.site.sessions]
        found: dict[str, KnownJob] = {}
        for name, answer in self.site.each(nodes, one, timeout_s=ASK_S + 5.0).items():
            if isinstance(answer, (Unreachable, ProgramNotStarted, TimeoutError)):
                self.site.failures[name] = Unreachable("ssh-unreachable", f"{name}: {answer}", f"check {name}")
                continue
            if isinstance(answer, BaseException):
                raise answer
            for seen in _of_node(answer["jobs"], name):
                job = found.setdefault(str(seen["about"]["job"]), KnownJob(str(seen["about"]["job"]), seen["about"]))
                job.folders[name] = seen["folder"]
                job.attempts[name] = seen["attempts"]
                job.clocks[name] = float(answer["time"])
        return sorted(found.values(), key=lambda job: (job.about.get("began", 0.0), job.id))

    def job(self, wanted: str | None, *, alive: bool = False) -> KnownJob:
        """The job of this id, or beginning of an id; without one the only one there is. Raises FilesWrong."""
        jobs = self.jobs()
        chosen = [job for job in jobs if wanted is None or job.id.startswith(wanted)]
        if wanted is None and alive:
            chosen = [job for job in chosen if job.alive] or chosen
        if len(chosen) == 1:
            return chosen[0]
        exact = [job for job in chosen if job.id == wanted]
        if exact:
            return exact[0]
        names = ", ".join(job.id for job in jobs) or "none at all"
        if not chosen:
            raise FilesWrong(
                [
                    Problem(
                        "arguments.no-job",
                        f"these nodes know no job {wanted or ''}".rstrip(),
                        help=f"they know: {names}",
                    )
                ]
            )
        raise FilesWrong([Problem("arguments.which-job", f"{len(chosen)} jobs fit", help=f"name one of {names}")])


def _of_node(jobs: Sequence[Facts], name: str) -> Iterator[Facts]:
    """Those of a node by its own name: nodes may be one machine, or share their homes."""
    for seen in jobs:
        with contextlib.suppress(KeyError):
            if seen["about"]["node"] == name:
                yield seen
