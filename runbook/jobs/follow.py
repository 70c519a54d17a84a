"""Read a job's logs from its nodes, once or for as long as it lives; attached, with the rule that the first failure ends all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from runbook.checks.context import Context, Run
from runbook.jobs import ending
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.crew import Crew
from runbook.jobs.known import Cluster, KnownJob
from runbook.jobs.launch import Stall
from runbook.jobs.logs import RankLogs
from runbook.jobs.secrets import JobSecrets
from runbook.jobs.stalled import outcomes_of_stall
from runbook.jobs.verdict import judge_attempt
from runbook.jobs.watch import Fetching, WatchEnd, watch
from runbook.model.errors import Unreachable
from runbook.model.verdict import Outcome

Tell = Callable[[ProcessSpec, str, list[str]], None]

PATIENCE_S = 60.0
"""How long a node that is reached may tell nothing of a job whose logs are followed."""


def crew_of(
    cluster: Cluster, job: KnownJob, run_dir: Path, tell: Tell, secrets: JobSecrets, *, goes_on: bool = False
) -> Crew:
    """The job's processes as their journals tell them; their logs come into `run_dir`, without the secrets. `goes_on`: a part
    of them is there already."""
    run = Run(job.id, run_dir, cluster.site, redactor=secrets.everywhere)
    at = Context(run, cluster.inventory, str(job.about.get("stage") or job.id), math.inf, lambda *_, **__: None)
    logs = RankLogs(run_dir, job.attempt, run.redactor, tell, of_nodes=secrets.of_nodes, goes_on=goes_on)
    crew = Crew(at, job.attempt, job.places, logs)
    crew.folders = {name: f"{job.folders[name]}/{job.attempt}" for name in crew.nodes}
    crew.offsets = {name: cluster.site.sessions[name].clock() for name in crew.folders if name in cluster.site.sessions}
    by_name = {journal["name"]: journal for journal in job.processes}
    for member in crew.members:
        crew.learn(member, by_name[member.place.name])
        member.keeper_gone = member.state != "ended" and not by_name[member.place.name]["keeper_lives"]
    return crew


def read(crew: Crew) -> list[str]:
    """All that was written so far; names of nodes that did not tell all of theirs."""
    return ending.drain(crew)


def follow(
    crew: Crew, *, stopping: Callable[[], bool], on_loss: Callable[[str, Unreachable], None]
) -> tuple[WatchEnd, list[str]]:
    """Until every process has ended, the first has failed, or the reader has enough; and the names of nodes that did not tell
    all of theirs. A node that is lost, or tells nothing for PATIENCE_S, is told at once, and the others are followed on."""
    with Fetching(crew, patience_s=PATIENCE_S):
        end = watch(crew, stopping=stopping, deadline=math.inf, on_loss=on_loss)
        if end.kind == "failed":
            time.sleep(0.2)
    return end, ending.drain(crew) if end.kind != "stopped" else []


def supervise(
    crew: Crew,
    *,
    grace_s: float,
    watched: Callable[[], tuple[WatchEnd, Stall]],
    hurry: Callable[[], bool] = lambda: False,
) -> tuple[WatchEnd, list[Outcome], list[str]]:
    """For as long as `watched` takes. The first failure, or a stall that it tells, ends the others; the outcomes say why it
    failed, none where it did not."""
    with Fetching(crew):
        end, stall = watched()
        if end.kind not in ("failed", "stalled"):
            return end, [], ending.drain(crew) if end.kind == "finished" else []
        frozen = ending.freeze(crew) if end.kind == "failed" else {}
        why = "another rank failed" if end.kind == "failed" else "the training made no steps any more"
        ending.end(crew, grace_s=grace_s, why=why, hurry=hurry)
    left = ending.drain(crew)
    if end.kind == "stalled":
        return end, outcomes_of_stall(crew, stall.findings, stall.seconds), left
    return end, judge_attempt(crew, end, frozen), left
