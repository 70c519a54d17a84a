"""Finds the jobs that the nodes of an inventory know, with their processes, stops them, and removes their files.

Only a process that was seen to be dead counts as ended.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from runbook.causes.catalogue import unreachable_for
from runbook.checks.context import Facts, no_answer_outcome
from runbook.jobs.attempt import ProcessSpec
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory, Node
from runbook.model.playbook import DEFAULT_GRACE_S
from runbook.node.journal import STOPPED_BY_USER, Odd, attempt_folder, serial_of, verify_journal_place
from runbook.transport.node_sessions import Site
from runbook.transport.remote_program import ProgramNotStarted

JOB_CONTROL_TIMEOUT_S = 20.0
"""Seconds that a node may take to answer."""

JOB_UNKNOWN_TEXT = "it no longer knows the job: its files there are gone"
"""In words, why a node that is reached says nothing about a job."""

NODE_LEFT_OUT_TEXT = "was not asked: -l leaves it out"
"""In words, why a node was not asked."""

SUPERVISORS_CLOSE_TIMEOUT_S = 2.0
"""Seconds that supervisors may take to say goodbye: they run no program of ours, and end by themselves if not heard."""


@dataclass
class KnownJob:
    """A job as its nodes describe it. By node: `folders` (the job's folder), `attempts` (journals by the name of their
    attempt's folder), `damaged` (files that the node could not read, with the processes that live beside them) and
    `clocks` (the node's time when it answered). All times are by the nodes' clocks. `left_out`: the job's nodes that
    were not to be asked."""

    id: str
    about: Facts
    folders: dict[str, str] = field(default_factory=dict)
    attempts: dict[str, dict[str, list[Facts]]] = field(default_factory=dict)
    damaged: dict[str, list[Facts]] = field(default_factory=dict)
    clocks: dict[str, float] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def join(self, other: KnownJob) -> None:
        """Adds another node's description of the job."""
        self.about = max(self.about, other.about, key=_completeness_key)
        self.folders |= other.folders
        self.attempts |= other.attempts
        self.damaged |= other.damaged
        self.clocks |= other.clocks

    @property
    def grace_s(self) -> float:
        """Seconds from TERM to KILL, at most MAX_REPORTED_GRACE_S."""
        return min(float(self.about.get("grace_s") or DEFAULT_GRACE_S), MAX_REPORTED_GRACE_S)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node on which the job was started, in rank order."""
        return tuple(self.about.get("nodes") or self.folders)

    @property
    def absent(self) -> tuple[str, ...]:
        """The job's nodes that gave no answer about it: not in this inventory, left out, not reached, or cleaned up."""
        return tuple(name for name in self.nodes if name not in self.folders)

    @property
    def silent(self) -> tuple[str, ...]:
        """The `absent` nodes that were not left out on purpose."""
        return tuple(name for name in self.absent if name not in self.left_out)

    @property
    def attempt(self) -> str:
        """The name of the folder of the latest attempt that any node knows."""
        known = [name for attempts in self.attempts.values() for name in attempts]
        return max(known, key=serial_of, default=attempt_folder(1))

    @property
    def processes(self) -> list[Facts]:
        """The journals of the latest attempt, in rank order."""
        found = [journal for attempts in self.attempts.values() for journal in attempts.get(self.attempt, ())]
        return sorted(found, key=lambda journal: (journal["ranks"], journal["name"]))

    @property
    def alive(self) -> list[Facts]:
        """The journals, of all attempts, whose keeper or any of whose processes lives."""
        every = [j for attempts in self.attempts.values() for journals in attempts.values() for j in journals]
        return [journal for journal in every if journal["lives"] or journal["keeper_lives"]]

    @property
    def state(self) -> str:
        """running, degraded (only a part of the job is known to live), failed, stopped (by a user), finished, or
        unknown, if a node does not answer, or cannot read its journals. Nodes that were left out do not count."""
        now = self.processes
        living = [j for j in now if j["lives"] or (j["keeper_lives"] and j["state"] != "ended")]  # it may wait to start
        if living and len(living) == len(now) and not self.silent:
            return "running"
        if living:
            return "degraded"
        bad = [journal for journal in now if journal["state"] != "ended" or journal.get("code") != 0]
        if bad:
            return "stopped" if all(journal.get("why") == STOPPED_BY_USER for journal in bad) else "failed"
        return "unknown" if self.silent or self.damaged or not now else "finished"

    @property
    def places(self) -> list[ProcessSpec]:
        """The processes of the latest attempt, as its journals describe them."""
        return [
            ProcessSpec(
                j["name"],
                j["node"],
                j.get("local_rank") or 0,
                tuple(j["ranks"]),
                tuple(j.get("gpus") or ()),
                tuple(
                    ProcessSpec(name, j["node"], local, (rank,))
                    for local, (name, rank) in enumerate(zip(j.get("each") or (), j["ranks"], strict=False))
                ),
            )
            for j in self.processes
        ]


class Cluster:
    """Connections to the nodes of an inventory, held for as long as one command takes."""

    def __init__(self, inventory: Inventory, *, forks: int = 64, left_out: Collection[str] = ()) -> None:
        """`left_out`: names of nodes that the user does not want to be asked."""
        self.inventory = inventory
        self.left_out = left_out
        name = f"look-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.site = Site(name, forks=forks, inventory=inventory.source, looks=True)

    def __enter__(self) -> Cluster:
        self.site.open(self.inventory.nodes)
        return self

    def __exit__(self, *_: object) -> None:
        self.site.close(timeout_s=SUPERVISORS_CLOSE_TIMEOUT_S)

    @property
    def unreached(self) -> Mapping[str, Unreachable]:
        """By node that gave no answer, why."""
        return self.site.failures

    def ask(
        self, order: Facts, folders: Mapping[str, str], *, timeout_s: float = JOB_CONTROL_TIMEOUT_S
    ) -> dict[str, Facts | BaseException]:
        """Gives the same order to every node that has a folder in `folders`; the answers or errors by node."""

        def one(node: Node) -> Facts:
            return self.site.sessions[node.name].call(
                "job_control", {**order, "folder": folders[node.name]}, timeout_s=timeout_s
            )

        nodes = [self.inventory.node(name) for name in folders if name in self.site.sessions]
        return dict(self.site.each(nodes, one, timeout_s=timeout_s + 5.0))

    def jobs(self, only: str | None = None) -> list[KnownJob]:
        """Every job that a node knows, the latest last; with `only`, the job with this id. Afterwards `unreached` holds
        the nodes that gave no answer this time."""

        def one(node: Node) -> Facts:
            order = {"do": "list", "workdir": node.workdir, "node": node.name, "job": only}
            return self.site.sessions[node.name].call("job_control", order, timeout_s=JOB_CONTROL_TIMEOUT_S)

        nodes = [node for node in self.inventory.nodes if node.name in self.site.sessions]
        found: dict[str, KnownJob] = {}
        for name, answer in self.site.each(nodes, one, timeout_s=JOB_CONTROL_TIMEOUT_S + 5.0).items():
            try:
                for seen in _jobs_in_answer(answer, name):
                    found.setdefault(seen.id, KnownJob(seen.id, seen.about)).join(seen)
            except _SINGLE_NODE_ERRORS as error:
                self.site.failures[name] = no_answer_error(name, error)
            else:
                self.site.failures.pop(name, None)
        for job in found.values():
            job.left_out = tuple(name for name in job.absent if name in self.left_out)
        return sorted(found.values(), key=lambda job: (job.about.get("began", 0.0), job.id))

    def job(self, wanted: str | None, *, alive: bool = False) -> KnownJob:
        """The job whose id is or begins with `wanted`; without `wanted`, the only job there is. `alive`: without an id,
        prefer jobs that live. Raises FilesWrong if no job fits or several do, and Unreachable if none fits and a node
        that does not answer may know it."""
        jobs = self.jobs()
        chosen = [job for job in jobs if wanted is None or job.id.startswith(wanted)]
        if wanted is None and alive:
            chosen = [job for job in chosen if job.alive] or chosen
        if len(chosen) == 1:
            return chosen[0]
        exact = [job for job in chosen if job.id == wanted]
        if exact:
            return exact[0]
        names = ", ".join(job.id for job in jobs)
        if not chosen:
            for silent in self.unreached.values():
                raise silent
            message = f"these nodes know no job {wanted}" if wanted else "there is no job on these nodes"
            help = f"they know: {names}" if names else _NO_JOBS_HELP
            raise FilesWrong.of("arguments.no-job", message, help=help)
        raise FilesWrong.of("arguments.which-job", f"{len(chosen)} jobs fit", help=f"name one of {names}")


_NO_JOBS_HELP = "a launch leaves one with `detach: true` or --detach; what others wrote is in .runbook/runs/RUN_ID/logs"
_SINGLE_NODE_ERRORS = (Unreachable, ProgramNotStarted, TimeoutError, Odd)
"""Errors that concern only one node: its state is unknown, and the other nodes are still asked."""


def no_answer_error(node: str, error: BaseException) -> Unreachable:
    """The error that says why a node gave no answer about its jobs."""
    if isinstance(error, Odd):
        says = f"{node} gives an invalid answer about its jobs: {error}"
        return unreachable_for("tool-output-unknown", says, way="another-answers", node=node)
    if isinstance(error, Unreachable):
        return error
    finding = no_answer_outcome(node, "job_control", error).findings[0]
    return Unreachable(finding.cause, finding.says, finding.remedy, finding.evidence)


def _jobs_in_answer(answer: Facts | BaseException, node: str) -> list[KnownJob]:
    """The jobs in a node's answer, as this node describes them. Raises Odd for a wrong field; if `answer` is an error,
    raises that."""
    if isinstance(answer, BaseException):
        raise answer
    found = []
    for seen in answer["jobs"]:
        about = seen["about"]
        if about["node"] != node:
            continue  # this node was not asked about the jobs of another node
        journals = {
            name: _checked_journals(name, every, node, about["job"]) for name, every in seen["attempts"].items()
        }
        job = KnownJob(about["job"], about, {node: seen["folder"]}, {node: journals}, clocks={node: answer["time"]})
        if seen.get("damaged"):
            job.damaged[node] = seen["damaged"]
        found.append(job)
    return found


def _checked_journals(attempt: str, journals: list[Facts], node: str, job: str) -> list[Facts]:
    """The journals of one attempt, if they are valid, with a name of its own for each process. Raises Odd."""
    for one in journals:
        verify_journal_place(one, node, job, attempt)
    names = [name for journal in journals for name in (journal["name"], *(journal.get("each") or ()))]
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise Odd("name", twice[0], "a name of its own for each process")
    return journals


def _completeness_key(about: Facts) -> tuple[int, int]:
    """The sort key that puts the fullest description of a job last: a node that a spare replaced knows only an earlier
    attempt, and a node whose job.json is damaged knows little."""
    return about.get("attempt") or 0, len(about)


STOP_POLL_INTERVAL_S = 0.3
"""Seconds between two looks at a job that is being stopped."""
MAX_REPORTED_GRACE_S = 86_400.0
"""The longest grace, in seconds, that is believed: it comes from the job's nodes, which may report anything."""

MAX_STOP_GRACE_S = 900.0
"""The longest grace, in seconds, for which a user who stops a job is kept waiting. Processes that live longer are
killed."""

STOP_KILL_TIMEOUT_S = 10.0
"""Seconds beyond the grace for the keepers to kill their processes, and to record that."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """`ended`: how many processes lived and were ended. By node, `left`: the names of processes that still live, and
    `unsure`: why the node could not be asked."""

    ended: int
    left: dict[str, list[str]]
    unsure: dict[str, str]


def stop(cluster: Cluster, job: KnownJob, *, now: bool = False, why: str = STOPPED_BY_USER) -> Stopped:
    """Stops a job: every keeper gets TERM, gives its process the job's grace and records `why`. With `now`, and to all
    that outlive the grace, KILL."""
    before = names_of_living(job)
    grace = 0.0 if now else min(job.grace_s, MAX_STOP_GRACE_S)
    unsure = {name: _silence_reason(cluster, name) for name in job.absent}
    refused: dict[str, str] = {}
    for attempt in _attempts_to_end(job):
        folders = {name: f"{folder}/{attempt}" for name, folder in job.folders.items() if attempt in job.attempts[name]}
        for name, answer in cluster.ask({"do": "kill" if now else "stop", "why": why}, folders).items():
            if isinstance(answer, BaseException):
                refused[name] = no_answer_error(name, answer).says
    deadline = time.monotonic() + grace + STOP_KILL_TIMEOUT_S
    while True:
        left, silent = ask_living_processes(cluster, job)
        late = [name for name in silent if cluster.site.sessions[name].lost is None]
        if not (left or late) or time.monotonic() > deadline:
            break
        time.sleep(STOP_POLL_INTERVAL_S)
    if left and not now:
        return stop(cluster, job, now=True, why=why)
    unsure |= {name: why for name, why in refused.items() if name in left} | silent
    asked = sum(len(names) for name, names in before.items() if name not in unsure)
    return Stopped(max(0, asked - sum(map(len, left.values()))), left, unsure)


def _attempts_to_end(job: KnownJob) -> list[str]:
    """The names of the attempts of which processes may live: the latest, and those of which some were seen. A job with
    many retries has hundreds of other attempts, which are over."""
    found = {job.attempt, *(attempt_folder(journal["attempt"]) for journal in job.alive)}
    for damaged in job.damaged.values():
        found |= {str(one["name"]).partition("/")[0] for one in damaged if one["pids"]}
    known = {name for attempts in job.attempts.values() for name in attempts}
    return sorted(found & known, key=serial_of)


def names_of_living(job: KnownJob) -> dict[str, list[str]]:
    """By node, the names of the job's processes that live, those of damaged journals included."""
    found: dict[str, list[str]] = {}
    for journal in job.alive:
        found.setdefault(str(journal["node"]), []).append(str(journal["name"]))
    for node, damaged in job.damaged.items():
        names = [str(one["name"]) for one in damaged if one["pids"]]
        if names:
            found.setdefault(node, []).extend(names)
    return found


def ask_living_processes(cluster: Cluster, job: KnownJob) -> tuple[dict[str, list[str]], dict[str, str]]:
    """By node, the names of the job's processes that live now; and by node, why it does not say: processes there were
    not seen to end."""
    found = [names_of_living(known) for known in cluster.jobs(job.id) if known.id == job.id]
    silent = {name: _silence_reason(cluster, name) for name in job.folders if name in cluster.unreached}
    return (found[0] if found else {}), silent


def _silence_reason(cluster: Cluster, name: str) -> str:
    """In words, why a node says nothing about the job."""
    if error := cluster.unreached.get(name):
        return error.says
    if name in cluster.left_out:
        return f"it {NODE_LEFT_OUT_TEXT}"
    return (
        JOB_UNKNOWN_TEXT
        if name in cluster.site.sessions
        else f"it was not reached, or {JOB_UNKNOWN_TEXT.removeprefix('it ')}"
    )


@dataclass(frozen=True, slots=True)
class Cleaned:
    """`removed`: the nodes from which the job was removed. `alive`: by node, the names of processes that live, in which
    case nothing was removed there. `unsure`: by node, why it could not be cleaned."""

    removed: list[str]
    alive: dict[str, list[str]]
    unsure: dict[str, str]


def clean(cluster: Cluster, job: KnownJob) -> Cleaned:
    """Removes the job's folders, unless a process of it lives on any node."""
    if lives := names_of_living(job):
        return Cleaned([], lives, {})
    removed, unsure = [], {name: _silence_reason(cluster, name) for name in job.absent}
    still: dict[str, list[str]] = {}
    for name, answer in cluster.ask({"do": "clean", "whole": True}, job.folders).items():
        if isinstance(answer, BaseException):
            unsure[name] = no_answer_error(name, answer).says
        elif answer["removed"]:
            removed.append(name)
        elif answer["alive"]:
            still[name] = answer["alive"]
        else:
            unsure[name] = "its folder could not be removed"
    return Cleaned(removed, still, unsure)
