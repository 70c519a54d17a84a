"""A rank for which all others wait: not stuck, only so much slower that the job runs at its pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.checks.ranks.evidence import gather
from runbook.model.verdict import Finding, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runbook.checks.ranks.pool import RankMember, RankPool

SHARE = 0.5
"""Of the timed AllReduces, a rank that holds the others up for less than this is only noise."""

TIMES = 4.0
"""How much longer than any rank of another node."""

LEAST_S = {"own": 0.3, "paused": 1.0, "queued": 1.0}
"""Its own code is measured to the call; a busy machine pauses and queues everybody now and then."""

KINDS = {
    "own": "spends it before it enters the collective, in its own code",
    "paused": "did not run at all meanwhile: something stops it again and again (SIGSTOP, a CPU quota, a frozen virtual machine)",
    "queued": "was ready to run and got no CPU: other processes are on them",
}


def lag(member: RankMember) -> tuple[float, str]:
    """Seconds for which this rank held the others up in the timed AllReduces, and of which kind they are."""
    told = member.steps.get("done", {}).get("lag") or {}
    timed = float(told.get("timed", 0.0))  # threads that wait side by side wait longer than the clock goes
    return max(((min(timed, float(told.get(kind, 0.0))), kind) for kind in KINDS), default=(0.0, "own"))


def stragglers(pool: RankPool, doing: str) -> list[Outcome] | None:
    """Outcomes that name the node whose ranks hold the others up, where that is beyond doubt; else None."""
    if len(pool.members) < 2:
        return None
    timed = max(float((m.steps.get("done", {}).get("lag") or {}).get("timed", 0.0)) for m in pool.members)
    worst = max(pool.members, key=lag)
    seconds, kind = lag(worst)
    others = [m for m in pool.members if m.rank.node != worst.rank.node] or [m for m in pool.members if m is not worst]
    if seconds < max(LEAST_S[kind], SHARE * timed, TIMES * max(lag(member)[0] for member in others)):
        return None
    gather(pool)
    return outcomes(pool, worst, others, f"{seconds:.1f} of {timed:.1f} s", kind, doing)


def outcomes(
    pool: RankPool, worst: RankMember, others: Sequence[RankMember], share: str, kind: str, doing: str
) -> list[Outcome]:
    node = worst.rank.node
    busy = [
        f"pid {one['pid']} of {one['user']} uses {one['cpu'] * 100:.0f} % of a CPU: {one['command']}"
        for one in (pool.seen.get(node) or {}).get("busy", ())
    ]
    finding = Finding(
        "rank-behind",
        f"every AllReduce waits for {worst.label} {doing}: it {KINDS[kind]}, for {share}",
        f"on {node}: `top -H` shows what runs there; `cat /sys/fs/cgroup/cpu.max`, `nproc` and `taskset -p PID` what the rank may use",
        (*(f"{m.label}: {lag(m)[0]:.2f} s" for m in (worst, *others)[:8]), *busy[:4]),
        tuple(sorted({m.rank.node for m in others} - {node})),
    )
    waited = Finding("peer-died", f"not judged: waited for {worst.label}", f"mend {node} first", (), (node,))
    return [
        Outcome.failed(each.name, finding) if each.name == node else Outcome.unknown(each.name, waited)
        for each in pool.inventory.nodes
    ]
