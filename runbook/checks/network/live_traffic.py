"""What stops the traffic between ranks that live and make no progress, looked at now.

A rule may appear in the middle of a run, and the ranks only see silence or a reset. Within seconds this module puts
together the kernel's own view of their connections, fresh dials, and the rules of both ends.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from runbook.checks.context import Context
from runbook.checks.network.dial import numeric_node_address
from runbook.checks.network.ephemeral_ports import port_range
from runbook.checks.network.failed_dials import Trouble
from runbook.checks.network.mesh import Mesh, Want
from runbook.checks.network.packet_filters import rules_of
from runbook.checks.network.pairs import choose_pairs, node_groupings
from runbook.checks.network.routing import shrunk_mtu_finding
from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS, Flow
from runbook.firewall.explain_connection import Blocked, Ends, explain_blocked, is_certainly_blocked
from runbook.model.inventory import Node
from runbook.model.units import bytes_text
from runbook.model.verdict import Finding
from runbook.transport.node_answers import RANK_CONNECTIONS_PROGRAM, RankConnections

MAX_NODES_READ_AHEAD = 16
"""With up to this many nodes, all rules are read while the dials are under way; with more, only the rules of the nodes
involved."""

LIVE_REPLY_TIMEOUT_S = 1.2
"""Seconds that an opened connection may take to each byte: fewer than for a check, since the time is short."""

LATE_RULES_TIMEOUT_S = 8.0
"""Seconds more for the rules of nodes between which a dial failed and which were too busy to list them at first:
without their rules both ends are suspected."""

MIN_RULES_COMPARISON_S = 1.0
"""Seconds for which connections that do not stand still are compared with the rules at least."""

MIN_CONSECUTIVE_RESENDS = 2
"""A segment that was sent again this many times in a row was not lost by chance."""


@dataclass(frozen=True, slots=True)
class Between:
    """What was found between some nodes.

    `findings` are by guilty node; without any, nothing blocks between the nodes, as far as could be seen. `stalled` has
    sentences about connections of ranks that stand still. `blind` has the nodes that could not be looked at, and why.
    `whole`: every dial opened, every node answered, and all rules were read.
    """

    findings: Mapping[str, tuple[Finding, ...]] = field(default_factory=dict)
    stalled: tuple[str, ...] = ()
    blind: Mapping[str, str] = field(default_factory=dict)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class RankConnection:
    """One established connection of two ranks: the client dialled the server."""

    client: str
    server: str
    client_address: str
    server_address: str
    client_port: int
    server_port: int
    said: tuple[str, ...] = ()  # lines from an end that waits for acknowledgement

    @property
    def still(self) -> bool:
        """Whether data that an end sent is not acknowledged."""
        return bool(self.said)


def traffic_between_nodes(at: Context, *, timeout_s: float = 5.0) -> Between:
    """What lies between the nodes of the stage now, after `timeout_s` at the latest.

    The stage's own deadline does not apply: often it has passed, and this explains why.
    """
    at = replace(at, deadline=time.monotonic() + timeout_s)
    if len(at.nodes) < 2:
        return Between()
    names = [node.name for node in at.nodes]
    numbers = {name: numeric_node_address(at, name) for name in names}
    peers = {name: [address for other, address in numbers.items() if other != name] for name in names}
    pool = ThreadPoolExecutor(2, thread_name_prefix="between")
    seeing = pool.submit(rank_connections, at)
    few = len(names) <= MAX_NODES_READ_AHEAD
    reading = pool.submit(rules_of, at, names, peers, timeout_s=at.left_s) if few else None
    pool.shutdown(wait=False)
    with Mesh(at, lambda _: [Want(0, "ephemeral"), Want(0, "ephemeral")], reply_s=LIVE_REPLY_TIMEOUT_S) as mesh:
        pairs = choose_pairs(names, at.inventory.rendezvous.master, node_groupings(at))
        mesh.dial(("greet", "up", "down"), pairs=pairs, extra=lambda peer: rendezvous_dial_target(at, peer))
        evidence = reading.result() if reading else None
        trouble = Trouble.of(at, mesh.dials, evidence)
        if unexplained := trouble.unexplained():
            mesh.again_by_pair(unexplained)
    # Rank 0 may have closed its store; the ranks show that better than a refused dial.
    dials = [dial for dial in mesh.dials if not (dial.mode == "knock" and dial.outcome == "refused")]
    seen = seeing.result()
    streams = joined_connections(at, seen)
    if evidence is None:
        involved = set(trouble.evidence) | {
            name for stream in streams if stream.still for name in (stream.client, stream.server)
        }
        evidence = rules_of(at, sorted(involved), peers, timeout_s=at.left_s)
    elif unread := {name for dial in trouble.bad for name in (dial.source, dial.destination) if evidence[name] is None}:
        late = replace(at, deadline=time.monotonic() + LATE_RULES_TIMEOUT_S)
        evidence = {**evidence, **rules_of(late, sorted(unread), peers, timeout_s=LATE_RULES_TIMEOUT_S)}
    findings: dict[str, list[Finding]] = defaultdict(list)
    for name, listed in Trouble.of(at, dials, evidence).findings().items():
        findings[name] += listed
    for name in names if not findings else ():
        if shrunk := shrunk_mtu_finding(at, name, evidence.get(name)):
            findings[name].append(replace(shrunk, peers=tuple(other for other in names if other != name)))
    reported = {frozenset((dial.source, dial.destination)) for dial in dials if dial.outcome != "open"}
    reported |= {frozenset((name, other)) for name in findings for other in names}
    for name, finding in stopped_connection_findings(at, streams, evidence, reported):
        findings[name].append(finding)
    return Between(
        {name: tuple(listed) for name, listed in findings.items()},
        tuple(line for stream in streams for line in stream.said),
        {name: outcome.findings[0].says for name, outcome in mesh.silent.items()},
        not mesh.silent
        and bool(dials)
        and all(dial.outcome == "open" for dial in dials)
        and all(evidence.get(name) is not None for name in (names if few else evidence)),
    )


def rendezvous_dial_target(at: Context, peer: Node) -> Sequence[tuple[str, int, str]]:
    """The rendezvous, when the peer is the master: the ranks meet there alone."""
    rendezvous = at.inventory.rendezvous
    return [(rendezvous.address, rendezvous.port, "rendezvous")] if peer.name == rendezvous.master else []


def rank_connections(at: Context) -> dict[str, RankConnections]:
    """By node, the connections of this run's ranks. A node that does not answer at once is left out."""

    def one(node: Node) -> RankConnections:
        return at.session(node).call(RANK_CONNECTIONS_PROGRAM, {"run_id": at.run.run_id}, timeout_s=min(1.5, at.left_s))

    return {name: answer for name, answer in at.each(one).items() if not isinstance(answer, BaseException)}


def names_by_address(at: Context) -> dict[str, str]:
    """The node that has each address that ranks may dial."""
    owner = {address: node.name for node in at.nodes for address in at.own_addresses(node.name)}
    owner.update({numeric_node_address(at, node.name): node.name for node in at.nodes})
    return owner


def joined_connections(at: Context, seen: Mapping[str, RankConnections]) -> list[RankConnection]:
    """The connections between nodes, each once, joined from what both ends see; those that stand still come first."""
    owner = names_by_address(at)
    listening = {name: {one["port"] for one in answer["listening"]} for name, answer in seen.items()}
    found: dict[tuple[str, int, str, int], RankConnection] = {}
    for name, answer in seen.items():
        for one in (one for one in answer["connections"] if one["open"]):
            peer = owner.get(one["remote"])
            if peer is None or peer == name:
                continue
            here = (name, str(one["local"]), int(one["local_port"]))
            there = (peer, str(one["remote"]), int(one["remote_port"]))
            serves = here[2] in listening[name] and there[2] not in listening.get(peer, set())
            client, server = (there, here) if serves else (here, there)
            key = (*client[1:], *server[1:])
            if (reverse := (*server[1:], *client[1:])) in found:
                key, client, server = reverse, server, client
            said = found[key].said if key in found else ()
            if one["resent"] >= MIN_CONSECUTIVE_RESENDS and one["unacked"]:
                way = f"{name} → {one['remote']}:{one['remote_port']} from port {one['local_port']}"
                waiting = f"{bytes_text(one['unacked'])} not acknowledged, sent again {one['resent']} times"
                said += (f"{way} (process {one['pid']}): {waiting}",)
            found[key] = RankConnection(
                client=client[0],
                server=server[0],
                client_address=client[1],
                server_address=server[1],
                client_port=client[2],
                server_port=server[2],
                said=said,
            )
    return sorted(found.values(), key=lambda stream: not stream.still)


def stopped_connection_findings(
    at: Context, streams: Iterable[RankConnection], evidence: Mapping[str, Evidence | None], known: set[frozenset[str]]
) -> Iterator[tuple[str, Finding]]:
    """The rules that stop connections, each with its node: at most one between two nodes, and none for pairs that are
    already `known`. A job has thousands of connections: those that stand still come first, the others until the
    deadline, but for MIN_RULES_COMPARISON_S at least."""
    until = max(at.deadline, time.monotonic() + MIN_RULES_COMPARISON_S)
    for stream in streams:
        ends = frozenset((stream.client, stream.server))
        if not stream.still and time.monotonic() > until:
            return
        if ends not in known and (found := stopped_connection_finding(at, stream, evidence)):
            known.add(ends)
            yield found


def stopped_connection_finding(
    at: Context, stream: RankConnection, evidence: Mapping[str, Evidence | None]
) -> tuple[str, Finding] | None:
    """The rule that stops an established connection, and its node, or None. For a connection that stands still the rule
    need not be certain."""
    handed_out = {port_range(at.facts(name)) or DEFAULT_EPHEMERAL_PORTS for name in (stream.client, stream.server)}
    ports = [*sorted(handed_out), *at.inventory.network.ports, (at.inventory.rendezvous.port,) * 2]
    blocked: Blocked | None = None
    for length in (None, 1500) if stream.still else (None,):
        flow = Flow(
            stream.client_address,
            stream.server_address,
            stream.server_port,
            state="established",
            source_ports=(stream.client_port, stream.client_port),
            packet_length=length,
        )
        blocked = explain_blocked("lost", flow, replace(Ends.of(evidence, stream.client, stream.server), ports=ports))
        if is_certainly_blocked(blocked):
            break
    if blocked is None or not (is_certainly_blocked(blocked) or (stream.still and blocked.remedies)):
        return None
    others = tuple(name for name in (stream.client, stream.server) if name != blocked.node)
    return blocked.node, Finding(
        blocked.cause, blocked.says, blocked.remedy, (*stream.said, *blocked.evidence)[:10], others
    )
