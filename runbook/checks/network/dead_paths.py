"""Connections that never get through beside others that always do, by their ports alone: one of several parallel paths
is dead, such as a next hop of a route, a member of a bond, or one of a switch's equal-cost routes (ECMP)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context
from runbook.checks.network.dial import Dial, number
from runbook.checks.network.mesh import PATIENT_S, Mesh
from runbook.checks.network.packet_filters import peers_of, rules_of
from runbook.checks.network.pairs import BlamedNodes, ends, groupings
from runbook.firewall.collected_rules import Evidence
from runbook.model.command_quoting import word
from runbook.model.grouping import grouped
from runbook.model.units import counted
from runbook.model.verdict import Finding

PROOF = 3
"""So many ports must be silent again, and as many open again at once: at a loss of 30 % that is one chance in a
thousand."""

MOST_OF_A_WAY, MOST = 8, 64
"""Ports that are tried again."""


@dataclass(frozen=True)
class SameAgain:
    """Of two nodes, one way: ports that were silent twice, and ports that opened at once twice."""

    silent: Sequence[Dial]
    open: Sequence[Dial]


def dead_path_findings(at: Context, mesh: Mesh) -> dict[str, list[Finding]]:
    """By node. A dial tries from several ports of its own: where some of these are never answered, another one hides
    it, and a rank, which has one port for each connection, would wait for ever."""
    late = [dial for dial in mesh.dials if opened_late(dial)]
    if len(late) < PROOF or at.left_s < 2 * PATIENT_S:
        return {}
    at.say(f"{len(late)} connections opened only from another port of their own: trying the same ports again")
    proven = same_again(late, mesh)
    if not proven:
        return {}
    names = sorted(set(chain.from_iterable(proven)))
    silent = list(chain.from_iterable(one.silent for one in proven.values()))
    evidence = rules_of(at, names, peers_of(at, silent), routes=True)
    by_route = {name: found for name in names if (found := next_hops(at, name, proven, evidence.get(name)))}
    if all(any(name in by_route for name in pair) for pair in proven):
        return {name: [found] for name, found in by_route.items()}  # who is at the other end has no part in it
    tried = {frozenset((dial.source, dial.destination)) for dial in mesh.dials if dial.source != dial.destination}
    blame = BlamedNodes.of(map(frozenset, proven), tried, groupings(at))
    return {
        name: [by_route.get(name) or blame.told(_between(name, peers, {p: o for p, o in proven.items() if name in p}))]
        for name, peers in blame.nodes.items()
    }


def opened_late(dial: Dial) -> bool:
    """Whether it opened, and not from the first of its ports, to another node."""
    late = dial.outcome == "open" and 1 < dial.tries <= len(dial.from_ports)
    return late and dial.source != dial.destination and dial.mode != "knock"


def same_again(late: Iterable[Dial], mesh: Mesh) -> dict[tuple[str, str], SameAgain]:
    """By both ends, what became of the same ports when they were tried again, where that is no chance."""
    some = [each[:MOST_OF_A_WAY] for each in grouped(((d.source, d.destination), d) for d in late).values()]
    dials = [dial for each in some for dial in each][:MOST]
    was_silent = {_from(dial, dial.from_ports[0]).flow for dial in dials}
    # Side by side: what limits the number of connections stops the ones like the others.
    again = mesh.from_ports([_from(dial, port) for dial in dials for port in (dial.from_ports[0], _opened(dial))])
    found: dict[tuple[str, str], SameAgain] = {}
    # One way at a time: a kernel with several next hops of its own need not send by the same one again.
    for pair, tried in grouped(((d.source, d.destination), d) for d in again).items():
        silent = [dial for dial in tried if dial.flow in was_silent and _unanswered(dial)]
        others = [dial for dial in tried if dial.flow not in was_silent]
        opened = [dial for dial in others if dial.outcome == "open" and not dial.retransmitted]
        if len(silent) >= PROOF and len(opened) >= PROOF and not any(map(_unanswered, others)):
            found[pair] = SameAgain(silent, opened)
    return found


def _unanswered(dial: Dial) -> bool:
    """The errno is what the kernel says once it has asked in vain for the hardware address of a dead next hop."""
    return dial.outcome == "dropped" or dial.errno == "EHOSTUNREACH"


def _opened(dial: Dial) -> int:
    """The port of its own from which it opened."""
    return dial.from_ports[dial.tries - 1]


def _from(dial: Dial, port: int) -> Dial:
    return Dial(dial.source, dial.destination, dial.address, dial.port, dial.kind, dial.mode, from_ports=(port,))


def next_hops(
    at: Context, name: str, proven: Mapping[tuple[str, str], SameAgain], known: Evidence | None
) -> Finding | None:
    """Where the node's own route to a peer, by which its answers go as well, has several next hops."""
    for pair, one in proven.items():
        peer = next((other for other in pair if other != name), name)
        routes = known.ways_to(number(at, peer))["routes"] if known and name in pair else ()
        route = next((route for route in routes if len(route.get("nexthops") or ()) > 1), None)
        if route is None:
            continue
        hops, destination = route["nexthops"], str(route.get("dst"))
        return finding_for(
            "packet-loss",
            f"{_says(*pair, one)}: the route of {name} to {destination} has {counted(len(hops), 'next hop')}, and one "
            "of them is dead",
            (f"{name}: {_shown(route)}", *_lines(one)),
            (peer,),
            way="next-hops",
            source=name,
            destination=word(destination),
            gateways=", ".join(str(hop["gateway"]) for hop in hops if hop.get("gateway")) or "none by name",
        )
    return None


def _shown(route: Mapping[str, object]) -> str:
    hops = route.get("nexthops")
    shown = [
        f"nexthop {'via ' + str(hop['gateway']) + ' ' if hop.get('gateway') else ''}dev {hop.get('dev')}"
        for hop in (hops if isinstance(hops, list) else ())
    ]
    return f"route {route.get('dst')} {' '.join(shown)}"


def _between(name: str, peers: list[str], proven: Mapping[tuple[str, str], SameAgain]) -> Finding:
    (source, destination), one = next(iter(proven.items()))
    first = one.silent[0]
    return finding_for(
        "packet-loss",
        f"{_says(source, destination, one)}: one of several paths between them is dead",
        tuple(chain.from_iterable(map(_lines, proven.values())))[:8],
        tuple(peers),
        way="flows",
        between=ends(name, peers),
        own=word(first.from_ports[0]),
        address=word(first.address),
        port=word(first.port),
        source=first.source,
    )


def _says(source: str, destination: str, one: SameAgain) -> str:
    return (
        f"{counted(len(one.silent), 'connection')} from {source} to {destination} got no answer twice, and "
        f"{len(one.open)} opened at once twice, each from the same port of its own"
    )


def _lines(one: SameAgain) -> list[str]:
    told = ((one.silent, "no answer, twice"), (one.open, "open at once, twice"))
    return [f"from {_flows(dials)}: {what}" for dials, what in told]


def _flows(dials: Sequence[Dial]) -> str:
    return ", ".join(f"{dial.source}:{dial.from_ports[0]} to {dial.address}:{dial.port}" for dial in dials[:4])
