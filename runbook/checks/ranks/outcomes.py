"""From ranks that stopped or hold the others up to outcomes: who is at fault, and what only followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbook.causes.catalogue import finding_for
from runbook.checks.context import no_answer
from runbook.checks.network.ephemeral_ports import NO_PORT, exhausted
from runbook.checks.ranks.collective_calls import mismatched
from runbook.checks.ranks.evidence import WATCH_S, busy_lines, gather
from runbook.checks.ranks.own_failure import own_failure
from runbook.checks.ranks.pool import Halt, RankPool
from runbook.checks.ranks.stuck import at_nodes, stuck
from runbook.model.verdict import Finding, Outcome, outcomes_of

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember


def outcomes_of_halt(pool: RankPool, halt: Halt, doing: str) -> list[Outcome]:
    """One outcome a node. The nodes at fault fail; the others are unknown, because nothing was proven about them. None
    for a suspicion or a silence that is not proven yet, and for a stall that is none because data flows as promised."""
    unknown: dict[str, Outcome] = {}
    for name, error in pool.failures.items():
        unknown[name] = no_answer(name, "launch", error)
    for member in pool.members:
        if member.remote is None and member.rank.node not in unknown:
            unknown[member.rank.node] = no_answer(
                member.rank.node,
                "launch",
                pool.run.site.failures.get(member.rank.node) or TimeoutError(f"{member.label} was never started"),
            )
        if member.lost:
            unknown[member.rank.node] = no_answer(member.rank.node, "launch", member.lost)
    gather(pool, watch_s=0.05 if halt.kind == "died" else WATCH_S)
    # What a node that went silent said last proves nothing about the others.
    unknown |= {name: finding for name, finding in at_nodes(pool).lost_nodes().items() if name not in unknown}
    guilty = mismatched(pool, doing)
    if not guilty:
        for member in pool.members:
            if not member.lost and (finding := own_failure(pool, member, doing)):
                guilty.setdefault(member.rank.node, []).append(finding)
    guilty = with_ports_counted(pool, guilty)
    if not guilty and not unknown:
        guilty = stuck(pool, halt, doing)
    if not guilty and (halt.kind in ("suspected", "silent") or not unknown):
        return []
    names = sorted(guilty) or sorted(unknown)
    result: list[Outcome] = []
    for node in pool.inventory.nodes:
        if node.name in guilty:
            result.append(Outcome.failed(node.name, *guilty[node.name]))
        elif node.name in unknown:
            result.append(unknown[node.name])
        else:
            result.append(Outcome.unknown(node.name, bystander(pool, node.name, names, halt.kind)))
    return result


def with_ports_counted(pool: RankPool, guilty: dict[str, list[Finding]]) -> dict[str, list[Finding]]:
    """A rank only reports that it got no port: this looks up how many its node has, and who holds them."""
    words = {
        node: [finding.says for finding in findings if finding.cause == NO_PORT]
        for node, findings in guilty.items()
        if any(finding.cause == NO_PORT for finding in findings)
    }
    for node, finding in exhausted(at_nodes(pool), words).items():
        guilty[node] = [finding, *(other for other in guilty[node] if other.cause != NO_PORT)]
    return guilty


def bystander(pool: RankPool, node: str, names: Sequence[str], kind: str) -> Finding:
    others = tuple(name for name in names if name != node)
    members = pool.on(node)
    whose = ", ".join(others) or "another node"
    said = [member.said for member in members if member.said]
    says = (
        f"not judged: {'stopped when' if kind == 'died' else 'waited for'} {whose}{' failed' if kind == 'died' else ''}"
    )
    return finding_for("peer-died", says, tuple(said[:2]), others, way="halted", node=node, whose=whose)


HELD_SHARE = 0.5
"""Below this share of the timed AllReduces, a rank that delays the others is noise."""

HELD_TIMES = 4.0
"""How much longer than any rank of another node."""

HELD_LEAST_S = {"own": 0.3, "paused": 2.0, "queued": 2.0}
"""Time in its own code is measured exactly; pauses and queues happen on every busy machine now and then."""

HELD_BY = {
    "own": "spends it before it enters the collective, in its own code",
    "paused": "did not run at all meanwhile: something stops it again and again (SIGSTOP, a frozen virtual machine)",
    "queued": "was ready to run and got no CPU: other processes are on them, or a CPU quota is used up",
}


def lag(member: RankMember) -> tuple[float, str]:
    """Seconds for which this rank held the others up in the timed AllReduces, and of which kind they are."""
    seconds = member.steps.get("done", {}).get("lag") or {}
    timed = float(seconds.get("timed", 0.0))  # threads that wait side by side wait longer than the clock goes
    return max(((min(timed, float(seconds.get(kind, 0.0))), kind) for kind in HELD_BY), default=(0.0, "own"))


def stragglers(pool: RankPool, doing: str) -> list[Outcome] | None:
    """Outcomes that name the node whose ranks hold the others up, where that is beyond doubt; else None."""
    if len(pool.members) < 2:
        return None
    timed = max(float((m.steps.get("done", {}).get("lag") or {}).get("timed", 0.0)) for m in pool.members)
    worst = max(pool.members, key=lag)
    seconds, kind = lag(worst)
    others = [m for m in pool.members if m.rank.node != worst.rank.node] or [m for m in pool.members if m is not worst]
    if seconds < max(HELD_LEAST_S[kind], HELD_SHARE * timed, HELD_TIMES * max(lag(member)[0] for member in others)):
        return None
    gather(pool)
    node = worst.rank.node
    says = f"every AllReduce waits for {worst.label} {doing}: it {HELD_BY[kind]}, for {seconds:.1f} of {timed:.1f} s"
    seen = (*(f"{m.label}: {lag(m)[0]:.2f} s" for m in (worst, *others)[:8]), *busy_lines(pool, node))
    finding = finding_for("rank-behind", says, seen, worst.peers_among(others), way="slow-node", node=node)
    waited = finding_for("peer-died", f"not judged: waited for {worst.label}", (), (node,), node=node)
    return outcomes_of((each.name for each in pool.inventory.nodes), {node: [finding]}, waited)
