"""Connections that never get through beside others that always do, by nothing but their ports: one of several parallel
paths is dead. Such a path is a next hop of a route, a member of a bond, or one of a switch's equal-cost routes
(ECMP)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context
from runbook.checks.network.dial import Dial, numeric_node_address
from runbook.checks.network.mesh import PATIENT_DIAL_TIMEOUT_S, Mesh
from runbook.checks.network.packet_filters import peer_addresses, rules_of
from runbook.checks.network.pairs import BlamedNodes, ends_text, node_groupings
from runbook.firewall.collected_rules import Evidence
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.units import count_text
from runbook.model.verdict import Finding

MIN_PROOF_PORTS = 3
"""How many ports must be silent again, and how many must open again at once, as proof: with a packet loss of 30 % the
chance of that is one in a thousand."""

MAX_DIRECTION_PORTS, MAX_RETRIED_PORTS = 8, 64
"""How many ports are tried again: of one direction between two nodes, and in all."""


@dataclass(frozen=True)
class SameAgain:
    """One direction between two nodes: dials from ports that were silent twice, and from ports that opened at once
    twice."""

    silent: Sequence[Dial]
    open: Sequence[Dial]


def dead_path_findings(at: Context, mesh: Mesh) -> dict[str, list[Finding]]:
    """Findings by node for dead ones among parallel paths. A dial tries several ports of its own, so when some of these
    are never answered, another port hides it. A rank has one port for each connection, and would wait for ever."""
    late = [dial for dial in mesh.dials if has_opened_late(dial)]
    if len(late) < MIN_PROOF_PORTS or at.left_s < 2 * PATIENT_DIAL_TIMEOUT_S:
        return {}
    at.say(f"{len(late)} connections opened only from another port of their own: trying the same ports again")
    proven = retry_same_ports(late, mesh)
    if not proven:
        return {}
    names = sorted(set(chain.from_iterable(proven)))
    silent = list(chain.from_iterable(one.silent for one in proven.values()))
    evidence = rules_of(at, names, peer_addresses(at, silent), routes=True)
    by_route = {name: found for name in names if (found := next_hops_finding(at, name, proven, evidence.get(name)))}
    if all(any(name in by_route for name in pair) for pair in proven):
        return {name: [found] for name, found in by_route.items()}  # the node at the other end has no part in it
    tried = {frozenset((dial.source, dial.destination)) for dial in mesh.dials if dial.source != dial.destination}
    blame = BlamedNodes.of(map(frozenset, proven), tried, node_groupings(at))
    return {
        name: [
            by_route.get(name)
            or blame.told(_dead_path_finding(name, peers, {p: o for p, o in proven.items() if name in p}))
        ]
        for name, peers in blame.nodes.items()
    }


def has_opened_late(dial: Dial) -> bool:
    """Whether a dial to another node opened, but not from the first of its own ports."""
    late = dial.outcome == "open" and 1 < dial.tries <= len(dial.from_ports)
    return late and dial.source != dial.destination and dial.mode != "knock"


def retry_same_ports(late: Iterable[Dial], mesh: Mesh) -> dict[tuple[str, str], SameAgain]:
    """By source and destination, the results when the same ports were tried again, where they cannot be chance."""
    some = [each[:MAX_DIRECTION_PORTS] for each in values_by_key(((d.source, d.destination), d) for d in late).values()]
    dials = [dial for each in some for dial in each][:MAX_RETRIED_PORTS]
    was_silent = {_dial_from_port(dial, dial.from_ports[0]).flow for dial in dials}
    # Tried side by side, so that a limit on the number of connections stops both kinds alike.
    again = mesh.from_ports(
        [_dial_from_port(dial, port) for dial in dials for port in (dial.from_ports[0], _opening_port(dial))]
    )
    found: dict[tuple[str, str], SameAgain] = {}
    # One direction at a time: a kernel with several next hops of its own may answer by another one.
    for pair, tried in values_by_key(((d.source, d.destination), d) for d in again).items():
        silent = [dial for dial in tried if dial.flow in was_silent and _is_unanswered(dial)]
        others = [dial for dial in tried if dial.flow not in was_silent]
        opened = [dial for dial in others if dial.outcome == "open" and not dial.retransmitted]
        if len(silent) >= MIN_PROOF_PORTS and len(opened) >= MIN_PROOF_PORTS and not any(map(_is_unanswered, others)):
            found[pair] = SameAgain(silent, opened)
    return found


def _is_unanswered(dial: Dial) -> bool:
    """Whether the dial got no answer. EHOSTUNREACH counts: the kernel says so after asking in vain for the hardware
    address of a dead next hop."""
    return dial.outcome == "dropped" or dial.errno == "EHOSTUNREACH"


def _opening_port(dial: Dial) -> int:
    """The dialler's own port from which the dial opened."""
    return dial.from_ports[dial.tries - 1]


def _dial_from_port(dial: Dial, port: int) -> Dial:
    """The same dial, untried, from only this port."""
    return Dial(dial.source, dial.destination, dial.address, dial.port, dial.kind, dial.mode, from_ports=(port,))


def next_hops_finding(
    at: Context, name: str, proven: Mapping[tuple[str, str], SameAgain], known: Evidence | None
) -> Finding | None:
    """The finding when the node's own route to a peer, which its answers take as well, has several next hops; else
    None."""
    for pair, one in proven.items():
        peer = next((other for other in pair if other != name), name)
        routes = known.ways_to(numeric_node_address(at, peer))["routes"] if known and name in pair else ()
        route = next((route for route in routes if len(route.get("nexthops") or ()) > 1), None)
        if route is None:
            continue
        hops, destination = route["nexthops"], str(route.get("dst"))
        return finding_for(
            "packet-loss",
            f"{_retry_summary_text(*pair, one)}: the route of {name} to {destination} has "
            f"{count_text(len(hops), 'next hop')}, and one "
            "of them is dead",
            (f"{name}: {_next_hops_text(route)}", *_retry_evidence_lines(one)),
            (peer,),
            way="next-hops",
            source=name,
            destination=shell_word(destination),
            gateways=", ".join(str(hop["gateway"]) for hop in hops if hop.get("gateway")) or "none by name",
        )
    return None


def _next_hops_text(route: Mapping[str, object]) -> str:
    """A route with its next hops, in words."""
    hops = route.get("nexthops")
    shown = [
        f"nexthop {'via ' + str(hop['gateway']) + ' ' if hop.get('gateway') else ''}dev {hop.get('dev')}"
        for hop in (hops if isinstance(hops, list) else ())
    ]
    return f"route {route.get('dst')} {' '.join(shown)}"


def _dead_path_finding(name: str, peers: list[str], proven: Mapping[tuple[str, str], SameAgain]) -> Finding:
    """The finding for a dead path between two nodes that no route of theirs explains."""
    (source, destination), one = next(iter(proven.items()))
    first = one.silent[0]
    return finding_for(
        "packet-loss",
        f"{_retry_summary_text(source, destination, one)}: one of several paths between them is dead",
        tuple(chain.from_iterable(map(_retry_evidence_lines, proven.values())))[:8],
        tuple(peers),
        way="flows",
        between=ends_text(name, peers),
        own=shell_word(first.from_ports[0]),
        address=shell_word(first.address),
        port=shell_word(first.port),
        source=first.source,
    )


def _retry_summary_text(source: str, destination: str, one: SameAgain) -> str:
    """What was seen in one direction, in words."""
    return (
        f"{count_text(len(one.silent), 'connection')} from {source} to {destination} got no answer twice, and "
        f"{len(one.open)} opened at once twice, each from the same port of its own"
    )


def _retry_evidence_lines(one: SameAgain) -> list[str]:
    told = ((one.silent, "no answer, twice"), (one.open, "open at once, twice"))
    return [f"from {_flows_text(dials)}: {what}" for dials, what in told]


def _flows_text(dials: Sequence[Dial]) -> str:
    return ", ".join(f"{dial.source}:{dial.from_ports[0]} to {dial.address}:{dial.port}" for dial in dials[:4])
