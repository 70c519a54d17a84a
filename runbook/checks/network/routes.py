"""Does the kernel have a way to every peer? If not, which route, rule or netmask is it, and what mends it?"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable

from runbook.checks.network.common import culprits, listed
from runbook.checks.network.observed import Observations, Pair
from runbook.checks.network.routing_policy import Sent, family, refusal
from runbook.model.commands import word
from runbook.model.verdict import Finding


def route_findings(seen: Observations, pairs: list[Pair]) -> dict[str, list[Finding]]:
    """For pairs without a route: by the node that is to be mended."""
    found: dict[str, list[Finding]] = defaultdict(list)
    grouped: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    apart: list[Pair] = []
    stuck = {(pair.source, pair.peer) for pair in pairs}
    for pair in pairs:
        reason = _refused(pair) or _connected(seen, pair) or _netmask(seen, pair)
        if reason is None and (pair.peer, pair.source) in stuck:
            apart.append(pair)
        else:
            reason = reason or ("", _missing(seen, pair))
            grouped[(pair.source, *reason)].append(pair)
    for (source, why, fix), those in grouped.items():
        found[source].append(_finding(source, those, f": {why}" if why else "", fix))
    for name, peers in culprits(pair.ends for pair in apart).items():
        found[name].append(_apart(seen, name, peers, [pair for pair in apart if name in pair.ends]))
    return dict(found)


def _finding(source: str, pairs: list[Pair], why: str, fix: str) -> Finding:
    peers = tuple(pair.peer for pair in pairs)
    where = listed(f"{pair.peer} ({pair.numeric})" for pair in pairs)
    said = (f"{source}: ip route get {pair.numeric}: {pair.route['error']}" for pair in pairs[:4])
    return Finding("no-route", f"{source} has no route to {where}{why}", fix, tuple(said), peers)


def _refused(pair: Pair) -> tuple[str, str] | None:
    """The kernel did refuse, so a rule that may have done it did, where no other is left."""
    found = refusal(Sent(pair.numeric, pair.route.get("src")), pair.route)
    if found is None:
        return None
    return found.why if found.certain else f"most likely {found.why}", found.fix


def _connected(seen: Observations, pair: Pair) -> tuple[str, str] | None:
    """The peer is in the network of one of our own addresses, and yet there is no route to that network."""
    for interface, prefix in _own_first(seen, pair.source):
        network = ipaddress.ip_interface(prefix).network
        there = any(route.get("dst") == str(network) for route in pair.route.get("routes") or [])
        if ipaddress.ip_address(pair.numeric) in network and network.num_addresses > 1 and not there:
            why = f"the route to its own network {network} on {interface} ({prefix}) is gone"
            source = prefix.partition("/")[0]
            return why, f"sudo ip {family(network)}route add {network} dev {word(interface)} src {word(source)}"
    return None


def _netmask(seen: Observations, pair: Pair) -> tuple[str, str] | None:
    """The peer's network holds our address, ours does not hold the peer's: our prefix is too long."""
    for interface, prefix in _own_first(seen, pair.source):
        mine = ipaddress.ip_interface(prefix)
        for other in seen.answers:
            for _, theirs in seen.prefixes(other):
                network = ipaddress.ip_interface(theirs).network
                if other != pair.source and mine.ip in network and ipaddress.ip_address(pair.numeric) in network:
                    why = f"{interface} has {prefix}, which leaves {pair.peer} out, while {other} has {theirs}"
                    return why, f"sudo ip address add {mine.ip}/{network.prefixlen} dev {word(interface)}"
    return None


def _missing(seen: Observations, pair: Pair) -> str:
    """The peer knows a way here, and we know none to it: by the gateway that leads to others, if there is one."""
    gateways = [other.route["via"] for other in seen.pairs if other.source == pair.source and other.route.get("via")]
    if gateways:
        return f"sudo ip route add {word(pair.numeric)} via {word(gateways[0])}"
    return (
        f"add the route that {pair.source} lacks: `sudo ip route add {word(pair.numeric)} via GATEWAY`, where GATEWAY is the router "
        f"of its network; `ip route` on a node that reaches {pair.peer} shows it"
    )


def _apart(seen: Observations, name: str, peers: list[str], pairs: list[Pair]) -> Finding:
    """Nodes in different networks, and nothing leads from one to the other."""
    mine = _networks(seen, [name])
    theirs = _networks(seen, peers)
    interface = seen.data_interface(name) or "IFACE"
    networks = list(dict.fromkeys(str(ipaddress.ip_interface(prefix).network) for _, prefix in theirs.values()))
    shown = [f"{node}: {interface} has {prefix}" for node, (interface, prefix) in {**mine, **theirs}.items()]
    place = f"its {interface} has {mine[name][1]}, and they are in {listed(networks)}" if mine and networks else ""
    errors = [f"{pair.source}: ip route get {pair.numeric}: {pair.route['error']}" for pair in pairs[:3]]
    wanted = networks[0] if networks else "THE NETWORK OF THE OTHERS"
    length = wanted.partition("/")[2] or "LENGTH"
    return Finding(
        "no-route",
        f"{name} ({seen.numeric(name)}) and {listed(peers)} have no route to each other"
        + (f": {place}" if place else ""),
        f"give {interface} of {name} a free address of {wanted} (`sudo ip address add ADDRESS/{length} dev {word(interface)}`) and "
        "write it into the inventory, or add routes by a gateway on both sides (`sudo ip route add NETWORK via GATEWAY`)",
        (*errors, *shown[:6]),
        tuple(peers),
    )


def _networks(seen: Observations, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """By node: the interface that the job uses, and its address with length."""
    found = {}
    for name in names:
        address = seen.numeric(name)
        for interface, prefix in seen.prefixes(name):
            if prefix.partition("/")[0] == address:
                found[name] = (interface, prefix)
    return found


def _own_first(seen: Observations, node: str) -> list[tuple[str, str]]:
    """A node's addresses, those on the interface that the job uses before the others."""
    chosen = seen.data_interface(node)
    return sorted(seen.prefixes(node), key=lambda place: place[0] != chosen)
