"""From "the ranks did not get there" to outcomes: who is at fault, what happened, and what only followed from it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from runbook.checks.context import Context, no_answer
from runbook.checks.network.ephemeral import NO_PORT, exhausted
from runbook.checks.ranks.calls import mismatched
from runbook.checks.ranks.ended import own_failure
from runbook.checks.ranks.evidence import WATCH_S, gather
from runbook.checks.ranks.pool import Halt, RankPool
from runbook.checks.ranks.stuck import LOOK_S, stuck
from runbook.model.verdict import Finding, Outcome


def outcomes_of_halt(pool: RankPool, halt: Halt, doing: str) -> list[Outcome]:
    """One outcome a node. The guilty fail; the others are unknown, because nothing was proven about them.

    None at all for a suspicion or a silence that nothing proves yet, and for a stall that is none: the data flows as promised.
    """
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
    """A rank that had no port left knows no more than that: how many its node has, and who holds them, is looked up now."""
    words = {
        node: [finding.says for finding in told if finding.cause == NO_PORT]
        for node, told in guilty.items()
        if any(finding.cause == NO_PORT for finding in told)
    }
    at = Context(pool.run, pool.inventory, "ports", time.monotonic() + LOOK_S, lambda *_, **__: None)
    for node, finding in exhausted(at, words).items():
        guilty[node] = [finding, *(other for other in guilty[node] if other.cause != NO_PORT)]
    return guilty


def bystander(pool: RankPool, node: str, names: Sequence[str], kind: str) -> Finding:
    others = tuple(name for name in names if name != node)
    members = pool.on(node)
    whose = ", ".join(others) or "another node"
    said = [str(member.failure.get("text")) for member in members if member.failure]
    return Finding(
        "peer-died",
        f"not judged: {'stopped when' if kind == 'died' else 'waited for'} {whose}{' failed' if kind == 'died' else ''}",
        f"nothing to do on {node}: mend {whose} first",
        tuple(said[:2]),
        others,
    )
