"""Attaches to a job that lives on its nodes: reads its processes from their journals, fetches its logs once or for as
long as it lives, and ends all of its processes at the first failure."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

from runbook.checks.context import Context, Run
from runbook.jobs import stop_attempt
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.failure import judge_attempt
from runbook.jobs.kept_processes import KeptProcesses
from runbook.jobs.known_jobs import Cluster, KnownJob
from runbook.jobs.launch import Stall
from runbook.jobs.logs import JobSecrets, RankLogs
from runbook.jobs.stall import outcomes_of_stall
from runbook.jobs.start import measure_clocks
from runbook.jobs.watch import HELD_UP_KINDS, Fetching, WatchEnd, watch_processes
from runbook.model.errors import Unreachable
from runbook.model.verdict import Outcome

OutputCallback = Callable[[ProcessSpec, str, list[str]], None]
"""Called with a source of output, its stream (`out` or `err`), and whole lines."""

NODE_SILENCE_TIMEOUT_S = 60.0
"""Seconds for which a node that is reached may say nothing about a job that is followed."""

HOST_FACTS_TIMEOUT_S = 10.0
"""Seconds for fetching the facts of all hosts. A look at ranks that make no steps needs them to know addresses."""


def kept_processes_of(
    cluster: Cluster,
    job: KnownJob,
    run_dir: Path | None,
    tell: OutputCallback,
    secrets: JobSecrets,
    *,
    goes_on: bool = False,
    only: Collection[int] = (),
) -> KeptProcesses:
    """The job's processes as their journals describe them. Their logs go into `run_dir`, if one is given, with the
    secrets masked, and line by line to `tell`. `goes_on`: a part of the logs is in `run_dir` already. `only`: the ranks
    whose logs are wanted; empty for all."""
    run = Run(job.id, run_dir or Path(os.devnull), cluster.site, redactor=secrets.everywhere)
    at = Context(run, cluster.inventory, str(job.about.get("stage") or job.id), math.inf, lambda *_, **__: None)
    logs = RankLogs(run_dir, job.attempt, run.redactor, tell, of_nodes=secrets.of_nodes, goes_on=goes_on)
    kept = KeptProcesses(at, job.attempt, job.places, logs)
    kept.only = frozenset(only)
    kept.folders = {name: f"{job.folders[name]}/{job.attempt}" for name in kept.nodes}
    measure_clocks(kept, [name for name in kept.nodes if name in cluster.site.sessions])
    by_name = {journal["name"]: journal for journal in job.processes}
    for member in kept.members:
        kept.learn(member, by_name[member.place.name])
    return kept


def follow_job(
    kept: KeptProcesses, *, stopping: Callable[[], bool], on_loss: Callable[[str, Unreachable], None]
) -> tuple[WatchEnd, list[str]]:
    """Follows a job until every process has ended, one has failed, or `stopping` says that the reader has enough. How
    watching ended, and the names of nodes that did not send all of their logs. A node that is lost, or says nothing for
    NODE_SILENCE_TIMEOUT_S, is reported to `on_loss` at once, and the other nodes are followed on."""
    with Fetching(kept, patience_s=NODE_SILENCE_TIMEOUT_S):
        end = watch_processes(kept, stopping=stopping, deadline=math.inf, on_loss=on_loss)
        if end.kind == "failed":
            time.sleep(0.2)
    return end, stop_attempt.fetch_rest_of_logs(kept, enough=stopping) if end.kind != "stopped" else []


def supervise_job(
    kept: KeptProcesses,
    *,
    grace_s: float,
    watched: Callable[[], tuple[WatchEnd, Stall]],
    leaving: Callable[[], bool] = lambda: False,
) -> tuple[WatchEnd, list[Outcome], list[str]]:
    """Stays attached to a job for as long as `watched` takes. The first failure, or a stall that `watched` reports,
    ends all processes. How watching ended; the outcomes that say why the job failed, empty if it did not; and the names
    of nodes that did not send all of their logs. A node that says nothing for NODE_SILENCE_TIMEOUT_S counts as lost.
    `leaving`: the caller ends, and leaves the ranks their whole grace."""
    with Fetching(kept, patience_s=NODE_SILENCE_TIMEOUT_S):
        kept.at.learn_hosts(timeout_s=HOST_FACTS_TIMEOUT_S)
        end, stall = watched()
        if end.kind not in ("failed", *HELD_UP_KINDS):
            return end, [], stop_attempt.fetch_rest_of_logs(kept) if end.kind == "finished" else []
        frozen = stop_attempt.freeze(kept) if end.kind == "failed" else {}
        why = "another rank failed" if end.kind == "failed" else f"the ranks of {', '.join(stall.findings)} hold it up"
        stop_attempt.end_processes(kept, grace_s=grace_s, why=why, leaving=leaving)
    if leaving():
        return end, [], []
    left = stop_attempt.fetch_rest_of_logs(kept)
    if end.kind in HELD_UP_KINDS:
        return end, outcomes_of_stall(kept, stall.findings, stall.seconds), left
    return end, judge_attempt(kept, end, frozen), left
