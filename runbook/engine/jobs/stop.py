"""Stop a job, and remove what is left of one: only what was seen to be dead counts as ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runbook.checks.context import Facts
from runbook.engine.jobs.known import Cluster, KnownJob

POLL_S = 0.3
LONGER_S = 10.0
"""Beyond the grace: to kill, and to write that down."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """How many processes lived and were ended; by node, what still lives, and why a node could not be asked."""

    ended: int
    left: dict[str, list[str]]
    unsure: dict[str, str]


def stop(cluster: Cluster, job: KnownJob, *, now: bool = False) -> Stopped:
    """TERM to every keeper, who gives its process the grace of the job; with `now` KILL at once."""
    before = len(job.alive)
    grace = 0.0 if now else float(job.about.get("grace_s") or 30.0)
    unsure = dict.fromkeys(job.absent, "it was not reached, or knows the job no more")
    for attempt in sorted({name for attempts in job.attempts.values() for name in attempts}):
        folders = {name: f"{folder}/{attempt}" for name, folder in job.folders.items() if attempt in job.attempts[name]}
        for name, answer in cluster.ask({"do": "kill" if now else "stop"}, folders).items():
            if isinstance(answer, BaseException):
                unsure[name] = str(answer)
    deadline = time.monotonic() + grace + LONGER_S
    while (left := alive(cluster, job)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if left and not now:
        return stop(cluster, job, now=True)
    return Stopped(before - sum(map(len, left.values())), left, unsure)


def alive(cluster: Cluster, job: KnownJob) -> dict[str, list[str]]:
    """By node, the names of what lives of it now."""
    found: dict[str, list[str]] = {}
    for known in cluster.jobs():
        if known.id == job.id:
            for journal in known.alive:
                found.setdefault(str(journal["node"]), []).append(str(journal["name"]))
    return found


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Names of nodes: where it was removed, where something lives (then nothing was), where nobody could look."""

    removed: list[str]
    alive: dict[str, list[Facts]]
    unsure: dict[str, str]


def clean(cluster: Cluster, job: KnownJob) -> Cleaned:
    """Remove the job's folders, where no rank of it lives on any node."""
    if job.alive:
        living: dict[str, list[Facts]] = {}
        for journal in job.alive:
            living.setdefault(str(journal["node"]), []).append(journal)
        return Cleaned([], living, {})
    removed, unsure = [], dict.fromkeys(job.absent, "it was not reached, or knows the job no more")
    still: dict[str, list[Facts]] = {}
    for name, answer in cluster.ask({"do": "clean", "whole": True}, job.folders).items():
        if isinstance(answer, BaseException):
            unsure[name] = str(answer)
        elif answer["removed"]:
            removed.append(name)
        else:
            still[name] = answer["alive"]
    return Cleaned(removed, still, unsure)
