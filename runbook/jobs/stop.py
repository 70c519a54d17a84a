"""Stop a job, and remove what is left of one: only what was seen to be dead counts as ended."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runbook.jobs.known import Cluster, KnownJob, why_not

POLL_S = 0.3
MOST_GRACE_S = 900.0
"""The grace of a job is told by its nodes: nobody waits for longer because one of them says so. What ends later is killed."""

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
    before = living(job)
    grace = 0.0 if now else min(float(job.about.get("grace_s") or 30.0), MOST_GRACE_S)
    unsure = {name: _silent(cluster, name) for name in job.absent}
    for attempt in sorted({name for attempts in job.attempts.values() for name in attempts}):
        folders = {name: f"{folder}/{attempt}" for name, folder in job.folders.items() if attempt in job.attempts[name]}
        for name, answer in cluster.ask({"do": "kill" if now else "stop"}, folders).items():
            if isinstance(answer, BaseException):
                unsure[name] = why_not(name, answer).says
    deadline = time.monotonic() + grace + LONGER_S
    while (left := alive(cluster, job, unsure)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if left and not now:
        return stop(cluster, job, now=True)
    asked = sum(len(names) for name, names in before.items() if name not in unsure)
    return Stopped(max(0, asked - sum(map(len, left.values()))), left, unsure)


def living(job: KnownJob) -> dict[str, list[str]]:
    """By node, the names of what lives of it."""
    found: dict[str, list[str]] = {}
    for journal in job.alive:
        found.setdefault(str(journal["node"]), []).append(str(journal["name"]))
    for node, damaged in job.damaged.items():
        names = [str(one["name"]) for one in damaged if one["pids"]]
        if names:
            found.setdefault(node, []).extend(names)
    return found


def alive(cluster: Cluster, job: KnownJob, unsure: dict[str, str]) -> dict[str, list[str]]:
    """The same as it is now. A node of it that tells nothing any more goes into `unsure`: nobody saw its processes end."""
    found: dict[str, list[str]] = {}
    for known in cluster.jobs():
        if known.id == job.id:
            found = living(known)
    unsure.update({name: _silent(cluster, name) for name in job.folders if name in cluster.unreached})
    return found


def _silent(cluster: Cluster, name: str) -> str:
    error = cluster.unreached.get(name)
    return error.says if error else "it was not reached, or knows the job no more"


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Names of nodes: where it was removed; where something lives, by name (then nothing was); where nobody could look."""

    removed: list[str]
    alive: dict[str, list[str]]
    unsure: dict[str, str]


def clean(cluster: Cluster, job: KnownJob) -> Cleaned:
    """Remove the job's folders, where no rank of it lives on any node."""
    if lives := living(job):
        return Cleaned([], lives, {})
    removed, unsure = [], {name: _silent(cluster, name) for name in job.absent}
    still: dict[str, list[str]] = {}
    for name, answer in cluster.ask({"do": "clean", "whole": True}, job.folders).items():
        if isinstance(answer, BaseException):
            unsure[name] = why_not(name, answer).says
        elif answer.get("removed") is True:
            removed.append(name)
        elif names := _names(answer.get("alive")):
            still[name] = names
        else:
            unsure[name] = "it did not say what became of it"
    return Cleaned(removed, still, unsure)


def _names(said: object) -> list[str]:
    return [str(name) for name in said] if isinstance(said, list) else []
