"""From ranks that stopped or stall to outcomes: which node is at fault, and what only followed. When no rank died and
none moves, the reason is a stopped process, a different call, a rank that never came, or the network."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, no_answer_outcome
from runbook.checks.network.ephemeral_ports import NO_PORT_CAUSE, port_exhaustion_findings
from runbook.checks.network.live_traffic import Between, traffic_between_nodes
from runbook.checks.ranks.collective_calls import (
    busy_elsewhere_findings,
    compare_rank_records,
    mismatched_call_findings,
    missing_call_findings,
)
from runbook.checks.ranks.evidence import (
    RANK_OBSERVATION_S,
    gather_evidence,
    kept_evidence_line,
    rank_progress_text,
    stack_lines,
    stopped_process_finding,
)
from runbook.checks.ranks.own_failure import own_failure_finding
from runbook.checks.ranks.pool import MIN_SLOW_DATA_FACTOR, Halt, RankPool
from runbook.model.units import bytes_text
from runbook.model.verdict import Finding, FindingsByNode, Outcome

if TYPE_CHECKING:
    from runbook.checks.ranks.pool import RankMember

STALL_QUESTIONS_TIMEOUT_S = 5.0
"""Seconds that nodes have to answer questions about ranks that stall."""
MIN_RANK_FLOW_BYTES_PER_S = 8 * 1024
"""Bytes a second that each rank sends. With fewer no data flows: the store and keep-alives alone send less."""

LONG_OBSERVATION_S = 1.5
"""Seconds for which ranks are watched before a stall is reported: one lost packet stops a slow link for a while."""

MAX_BUSY_LOOKS, MIN_BUSY_CPUS = 4, 0.5
"""So many long looks are made at most while other programs use so many CPUs of a node, or more."""

MIN_FULL_QUEUE_BYTES = 64 * 1024
"""Bytes that wait to be sent on a node. More, where other nodes have few, means that the node sends slowly."""


def halt_findings(pool: RankPool, halt: Halt, doing: str) -> FindingsByNode:
    """Findings by the node at fault, from evidence gathered before and from a look at the traffic between the nodes
    now."""
    suspected = halt.kind in ("suspected", "silent")
    if found := mismatched_call_findings(pool, doing) or (
        {} if halt.kind == "suspected" else sleeping_rank_findings(pool, doing)
    ):
        return with_evidence_folder(pool, found)
    if not suspected and (found := missing_call_findings(pool, doing)):
        return with_evidence_folder(pool, found)
    broken = [member for member in pool.members if member.aftermath]
    waited = f"nothing moved for {halt.seconds:.0f} s" if halt.kind == "late" else "no rank makes progress"
    if not broken and not suspected and behind_rank_findings(pool, doing):
        gather_evidence(
            pool, watch_s=LONG_OBSERVATION_S
        )  # a rank that was only late, on a busy machine, has come to the call by now
        if found := behind_rank_findings(pool, doing):
            return with_evidence_folder(pool, found)
    least = MIN_RANK_FLOW_BYTES_PER_S * len(pool.members)
    if not broken and (flows := rank_traffic_rate(pool)) > least:
        return flowing_data_findings(pool, halt, doing, flows)
    seen = examine_live_traffic(pool)
    if seen.findings:
        words = tuple(f"{m.label}: {m.said}" for m in broken[:2])
        stands_still = f"the ranks stand still {doing}, {rank_progress_text(pool.members[0])}"
        state = f"a connection broke {doing}" if broken else stands_still
        found = {name: [one.with_evidence(state, *words) for one in each] for name, each in seen.findings.items()}
        return with_evidence_folder(pool, found)
    if suspected:
        return {}
    if broken:
        return with_evidence_folder(pool, lost_connection_findings(pool, broken, doing, seen))
    if (flows := longer_traffic_rate(pool, least)) > least:
        return flowing_data_findings(pool, halt, doing, flows)
    if found := busy_elsewhere_findings(
        pool, doing
    ):  # on a busy machine a rank may only now have reached the place where it stays
        return with_evidence_folder(pool, found)
    evidence = (*seen.stalled[:4], *ruled_out_evidence(pool, seen), *stack_lines(pool.members[:2]))
    if seen.stalled:
        says = (
            f"what the ranks send no longer arrives {doing}, {rank_progress_text(pool.members[0])}, although new "
            "connections between the nodes open and no rule of theirs blocks them"
        )
        finding = finding_for("tcp-connection-lost-midrun", says, evidence, way="silent")
    else:
        says = (
            f"all ranks wait in the same call {doing}, "
            f"{rank_progress_text(pool.members[0])}: {waited}, and no rank is behind"
        )
        finding = finding_for("collective-stall-uniform", says, evidence)
    return with_evidence_folder(pool, {node.name: [finding] for node in pool.inventory.nodes})


def flowing_data_findings(pool: RankPool, halt: Halt, doing: str, rate: float) -> FindingsByNode:
    """Nothing when the data flows at `rate`, in bytes a second, unless far more was promised or the time is up."""
    if halt.kind in ("suspected", "silent"):
        return {}
    if halt.kind != "late":
        least = 0.0 if halt.promised is None else halt.promised / MIN_SLOW_DATA_FACTOR
        if rate > least:
            return {}
        rate = max(rate, longer_traffic_rate(pool, least))
        if rate > least:
            return {}
    return with_evidence_folder(pool, slow_data_findings(pool, doing, rate, halt.promised))


def with_evidence_folder(pool: RankPool, found: FindingsByNode) -> FindingsByNode:
    """The findings, of which the first now says in which folder the evidence is kept."""
    first = next(iter(found))
    head, *rest = found[first]
    found[first] = [head.with_evidence(kept_evidence_line(pool)), *rest]
    return found


def sleeping_rank_findings(pool: RankPool, doing: str) -> FindingsByNode:
    """Findings for ranks that are stopped, or wait in the kernel, by node."""
    found: FindingsByNode = {}
    for member in pool.members:
        if member.asleep:
            found.setdefault(member.rank.node, []).append(stopped_process_finding(member, member.asleep, doing))
    return found


def behind_rank_findings(pool: RankPool, doing: str) -> FindingsByNode:
    """Ranks that came less far than others, when no record of calls says more: a rank that waits in an earlier
    collective may only be one whose data does not arrive."""
    if found := busy_elsewhere_findings(pool, doing):
        return found
    seen = compare_rank_records(pool)
    first = min(pool.members, key=lambda member: member.place)
    last = max(pool.members, key=lambda member: member.place)
    if first.place == last.place or (seen and seen.kind == "uniform"):
        return {}
    for member in pool.members:
        if member.place != first.place:
            continue
        found.setdefault(member.rank.node, []).append(
            finding_for(
                "rank-behind",
                f"{member.label} is behind the others {doing}: {rank_progress_text(member)}, "
                f"the others {rank_progress_text(last)}",
                stack_lines([member, last]),
                way="straggler",
                node=member.rank.node,
            )
        )
    return found


def rank_traffic_rate(pool: RankPool) -> float:
    """Bytes a second that the connections of all ranks carry together; that all interfaces carry where sockets are not
    known."""
    total = 0.0
    for facts in pool.seen.values():
        moved = [rank["moved"] for rank in facts["ranks"].values()]
        known = [bytes_ for bytes_ in moved if bytes_ is not None]
        total += (sum(known) if known else facts.get("carried") or 0) / max(0.1, facts["seconds"])
    return total / 2  # both ends count each byte


def longer_traffic_rate(pool: RankPool, enough: float) -> float:
    """The most bytes a second that flow in one of several long looks. TCP that has just lost packets sends in bursts,
    and ranks that get no CPU send nothing: while other programs use the nodes' CPUs, up to MAX_BUSY_LOOKS are made."""
    rate = 0.0
    for _ in range(MAX_BUSY_LOOKS):
        gather_evidence(pool, watch_s=LONG_OBSERVATION_S)
        rate = max(rate, rank_traffic_rate(pool))
        used = max((sum(one["cpu"] for one in facts.get("busy") or ()) for facts in pool.seen.values()), default=0.0)
        if rate > enough or used < MIN_BUSY_CPUS:
            break
    return rate


def slow_data_findings(pool: RankPool, doing: str, rate: float, promised: float | None) -> FindingsByNode:
    """Findings for data that flows much more slowly than promised. They name the nodes on which packets queue up far
    more than on others, or all nodes."""
    queued: dict[str, int] = {
        name: sum(int(rank.get("queued") or 0) for rank in facts["ranks"].values()) for name, facts in pool.seen.items()
    }
    full = [name for name, size in queued.items() if size > MIN_FULL_QUEUE_BYTES and size > 4 * min(queued.values())]
    nodes = full if 0 < len(full) < len(queued) else [node.name for node in pool.inventory.nodes]
    sender = (
        f"what {', '.join(nodes)} sends queues up there" if nodes == full else "no single sender is seen to be slow"
    )
    finding = finding_for(
        "allreduce-slow",
        f"the data still flows {doing}, {rank_progress_text(pool.members[0])}, at {bytes_text(round(rate))}/s, "
        + (f"far below the {bytes_text(round(promised))}/s that were to be expected" if promised else "and time is up")
        + f": {sender}",
        tuple(f"{name}: {bytes_text(size)} waiting to be sent" for name, size in queued.items()),
        tuple(node.name for node in pool.inventory.nodes if node.name not in nodes),
        way="link",
    )
    return {name: [finding] for name in nodes}


def lost_connection_findings(pool: RankPool, broken: Sequence[RankMember], doing: str, seen: Between) -> FindingsByNode:
    """Findings when ranks report a broken connection and no rank died: the network broke it, between the two nodes at
    its ends."""
    first = min(broken, key=lambda member: member.heard)
    nodes = [first.rank.node, *lost_connection_peers(pool, first)]
    if len(nodes) < 2:
        nodes = [node.name for node in pool.inventory.nodes]
    between_them = f" between {' and '.join(nodes[:2])}" if len(nodes) == 2 else ""
    finding = finding_for(
        "tcp-connection-lost-midrun",
        f"the ranks lost an established connection{between_them} {doing}, "
        f"{rank_progress_text(first)}; no rank had died",
        (*(f"{member.label}: {member.said}" for member in broken[:6]), *ruled_out_evidence(pool, seen)),
        way="reset",
    )
    return {node: [finding] for node in dict.fromkeys(nodes)}


def lost_connection_peers(pool: RankPool, member: RankMember) -> list[str]:
    """The nodes whose addresses appear in what a rank says about a connection that it lost."""
    text = member.said
    facts = pool.run.facts
    found = []
    for node in pool.inventory.nodes:
        listed = [a for entry in facts.get(node.name, {}).get("interfaces", {}).values() for a in entry["addresses"]]
        addresses = [node.address, *(address for address in listed if not address.startswith("127."))]
        if node.name != member.rank.node and any(
            re.search(rf"(?<![\w.:]){re.escape(a)}(?![\w.])", text) for a in addresses
        ):
            found.append(node.name)
    return found


def examine_live_traffic(pool: RankPool) -> Between:
    """What lies between the nodes of the ranks now; nothing where there is one machine only."""
    if len(pool.inventory.nodes) < 2 or pool.inventory.one_machine:
        return Between()
    return traffic_between_nodes(question_context(pool), timeout_s=STALL_QUESTIONS_TIMEOUT_S)


def question_context(pool: RankPool) -> Context:
    """A context for questions to the nodes of the ranks. It gives them STALL_QUESTIONS_TIMEOUT_S to answer, and prints
    nothing."""
    return Context(
        pool.run, pool.inventory, "ranks", time.monotonic() + STALL_QUESTIONS_TIMEOUT_S, lambda *_, **__: None
    )


def ruled_out_evidence(pool: RankPool, seen: Between) -> tuple[str, ...]:
    """Evidence: what was ruled out, and what to try next."""
    lines = [f"could not look: {why}" for why in list(seen.blind.values())[:2]]
    looked = [member for member in pool.members if member.processes]
    if looked:
        lines.append(f"ruled out: a dead or stopped process ({len(looked)} of {len(pool.members)} ranks looked at)")
    record = compare_rank_records(pool)
    if record and record.kind == "uniform":
        lines.append(
            f"ruled out: different calls; collective number {record.number} is the same on every rank (Flight Recorder)"
        )
    elif not record:
        lines.append("next: torch recorded no calls (Flight Recorder); a newer torch does")
    if len(pool.inventory.nodes) > 1 and not seen.blind and not pool.inventory.one_machine:
        lines.append("ruled out: new TCP connections between all nodes, small and full-size packets, pass now")
    if not seen.stalled and looked:
        lines.append("ruled out: no TCP connection of a rank has unacknowledged data")
    lines.append("next: run only this stage again (`--start-at`); if it always stops here, halve the nodes with `-l`")
    return tuple(lines)


def outcomes_of_halt(pool: RankPool, halt: Halt, doing: str) -> list[Outcome]:
    """One outcome a node. The nodes at fault fail; the others are unknown, because nothing was proven about them. An
    empty list for a suspicion or silence that proves nothing yet, and for a stall in which data flows as promised."""
    unknown: dict[str, Outcome] = {}
    for name, error in pool.failures.items():
        unknown[name] = no_answer_outcome(name, "launch", error)
    for member in pool.members:
        if member.remote is None and member.rank.node not in unknown:
            unknown[member.rank.node] = no_answer_outcome(
                member.rank.node,
                "launch",
                pool.run.site.failures.get(member.rank.node) or TimeoutError(f"{member.label} was never started"),
            )
        if member.lost:
            unknown[member.rank.node] = no_answer_outcome(member.rank.node, "launch", member.lost)
    gather_evidence(pool, watch_s=0.05 if halt.kind == "died" else RANK_OBSERVATION_S)
    # The last words of a node that went silent prove nothing about the other nodes.
    unknown |= {name: finding for name, finding in question_context(pool).lost_nodes().items() if name not in unknown}
    guilty = mismatched_call_findings(pool, doing)
    if not guilty:
        for member in pool.members:
            if not member.lost and (finding := own_failure_finding(pool, member, doing)):
                guilty.setdefault(member.rank.node, []).append(finding)
    guilty = with_ports_counted(pool, guilty)
    if not guilty and not unknown:
        guilty = halt_findings(pool, halt, doing)
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
            result.append(Outcome.unknown(node.name, bystander_finding(pool, node.name, names, halt.kind)))
    return result


def with_ports_counted(pool: RankPool, guilty: dict[str, list[Finding]]) -> dict[str, list[Finding]]:
    """The findings, with how many ports the node has and which processes hold them: a rank only reports that it got
    none."""
    words = {
        node: [finding.says for finding in findings if finding.cause == NO_PORT_CAUSE]
        for node, findings in guilty.items()
        if any(finding.cause == NO_PORT_CAUSE for finding in findings)
    }
    for node, finding in port_exhaustion_findings(question_context(pool), words).items():
        guilty[node] = [finding, *(other for other in guilty[node] if other.cause != NO_PORT_CAUSE)]
    return guilty


def bystander_finding(pool: RankPool, node: str, names: Sequence[str], kind: str) -> Finding:
    """The finding for a node that is not at fault: its ranks stopped, or waited, because of the nodes in `names`."""
    others = tuple(name for name in names if name != node)
    members = pool.on(node)
    whose = ", ".join(others) or "another node"
    said = [member.said for member in members if member.said]
    says = (
        f"not judged: {'stopped when' if kind == 'died' else 'waited for'} {whose}{' failed' if kind == 'died' else ''}"
    )
    return finding_for("peer-died", says, tuple(said[:2]), others, way="halted", node=node, whose=whose)
