"""A batch job that ends takes its processes along, one after the other: what was seen of the first ones is not their doing."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runbook.checks.context import Run
from runbook.model.inventory import Inventory
from runbook.model.verdict import Finding, Outcome, Verdict

OVER = "slurm-job-ended"
KILLED = frozenset({"terminated-from-outside", "rank-killed"})
"""What a process looks like that ended with its job."""

TOGETHER_S = 1.5
"""Within this after a first process all of the job have been signalled, the supervisors among them."""


def told_by_their_job(run: Run, inventory: Inventory, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The same, but what killed processes and the whole job is told as that, and of no node."""
    batch = {node.name for node in inventory.nodes if node.connection == "slurm"}
    sessions = {name: session for name, session in run.site.sessions.items() if name in batch}
    known = any(finding.cause == OVER for outcome in outcomes for finding in outcome.findings)
    suspects = [o.node for o in outcomes if o.node in sessions and any(f.cause in KILLED for f in o.findings)]

    def over(name: str) -> Finding | None:
        told = sessions[name].why_lost() if name in sessions else None
        ended = told is not None and told.cause == OVER
        return Finding(told.cause, told.says, told.remedy, told.evidence) if told and ended else None

    deadline = time.monotonic() + TOGETHER_S
    # Slurm knows it before its signals arrive; a program that takes its grace may keep its session for long.
    while not known and not any(map(over, suspects)) and time.monotonic() < deadline:
        if all(sessions[name].lost for name in suspects):
            break
        time.sleep(0.1)

    if not known and not any(map(over, suspects)):
        return list(outcomes)
    return [
        Outcome.unknown(o.node, finding) if o.verdict is not Verdict.PASS and (finding := over(o.node)) else o
        for o in outcomes
    ]
