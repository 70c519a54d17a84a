"""Does the kernel have a way to every peer? If not, which route, rule or netmask is it, and what mends it?"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from runbook.checks.reachability.common import culprits, listed
from runbook.checks.reachability.seen import Pair, Seen
from runbook.model.verdict import Finding

REFUSALS = ("blackhole", "unreachable", "prohibit")
NARROWED = frozenset(
    ("fwmark", "iif", "oif", "ipproto", "sport", "dport", "tos", "uidrange", "uid_start", "not", "l3mdev", "tun_id")
)
"""Selectors of a policy rule that say more than from whom and to whom: whether they match cannot be told from here."""


def route_findings(seen: Seen, pairs: list[Pair]) -> dict[str, list[Finding]]:
    """For pairs without a route: by the node that is to be mended."""
    found: dict[str, list[Finding]] = defaultdict(list)
    grouped: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    apart: list[Pair] = []
    stuck = {(pair.source, pair.peer) for pair in pairs}
    for pair in pairs:
        reason = refusal(pair.numeric, pair.route) or _connected(seen, pair) or _netmask(seen, pair)
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


def refusal(address: str, way: Mapping[str, Any]) -> tuple[str, str] | None:
    """The route or policy rule that refuses to lead to an address, and what removes it: the first that the kernel meets, in
    the order of the rules. `way` has the `rules`, the `routes` that match, and the source address, `src`, if it is known."""
    target = ipaddress.ip_address(address)
    source = way.get("src")
    for rule in sorted(way.get("rules") or [], key=lambda rule: int(rule.get("priority", 0))):
        if NARROWED & set(rule) or not (_covers(rule, "dst", str(target)) and _covers(rule, "src", source)):
            continue
        if rule.get("action") in REFUSALS:
            text = _rule_text(rule)
            return f"policy rule `{text}` refuses it", f"sudo ip {_family(target)}rule del priority {rule['priority']}"
        table = str(rule.get("table", "main"))
        routes = [
            route
            for route in way.get("routes") or []
            if str(route.get("table", "main")) == table and _within(target, str(route.get("dst")))
        ]
        if not routes:
            continue
        best = max(routes, key=lambda route: (_length(str(route["dst"])), -int(route.get("metric", 0))))
        kind = best.get("type", "unicast")
        if kind in REFUSALS:
            words = f"{kind} {best['dst']}" + (f" table {table}" if table != "main" else "")
            via = (
                f", to which policy rule `{_rule_text(rule)}` leads"
                if table not in ("main", "local", "default")
                else ""
            )
            return f"route `{words}`{via} refuses it", f"sudo ip {_family(target)}route del {words}"
        if kind != "throw":
            return None
    return None


def _covers(rule: Mapping[str, Any], key: str, address: str | None) -> bool:
    """Whether a rule's `from` or `to` takes this address."""
    wanted = rule.get(key, "all")
    if wanted == "all":
        return True
    if address is None:
        return False
    length = rule.get(f"{key}len")
    return _within(ipaddress.ip_address(address), f"{wanted}/{length}" if length is not None else str(wanted))


def _rule_text(rule: Mapping[str, Any]) -> str:
    def end(key: str) -> str:
        length = f"/{rule[key + 'len']}" if f"{key}len" in rule else ""
        return f"{rule[key]}{length}"

    to = f" to {end('dst')}" if rule.get("dst", "all") != "all" else ""
    return f"{rule['priority']}: from {end('src') if 'src' in rule else 'all'}{to} " + (
        str(rule["action"]) if rule.get("action") in REFUSALS else f"lookup {rule.get('table')}"
    )


def _connected(seen: Seen, pair: Pair) -> tuple[str, str] | None:
    """The peer is in the network of one of our own addresses, and yet there is no route to that network."""
    for interface, prefix in _own_first(seen, pair.source):
        network = ipaddress.ip_interface(prefix).network
        if ipaddress.ip_address(pair.numeric) in network and network.num_addresses > 1:
            why = f"the route to its own network {network} on {interface} ({prefix}) is gone"
            source = prefix.partition("/")[0]
            return why, f"sudo ip {_family(network)}route add {network} dev {interface} src {source}"
    return None


def _netmask(seen: Seen, pair: Pair) -> tuple[str, str] | None:
    """The peer's network holds our address, ours does not hold the peer's: our prefix is too long."""
    for interface, prefix in _own_first(seen, pair.source):
        mine = ipaddress.ip_interface(prefix)
        for other in seen.answers:
            for _, theirs in seen.prefixes(other):
                network = ipaddress.ip_interface(theirs).network
                if other != pair.source and mine.ip in network and ipaddress.ip_address(pair.numeric) in network:
                    why = f"{interface} has {prefix}, which leaves {pair.peer} out, while {other} has {theirs}"
                    return why, f"sudo ip address add {mine.ip}/{network.prefixlen} dev {interface}"
    return None


def _missing(seen: Seen, pair: Pair) -> str:
    """The peer knows a way here, and we know none to it: by the gateway that leads to others, if there is one."""
    gateways = [other.route["via"] for other in seen.pairs if other.source == pair.source and other.route.get("via")]
    if gateways:
        return f"sudo ip route add {pair.numeric} via {gateways[0]}"
    return (
        f"add the route that {pair.source} lacks: `sudo ip route add {pair.numeric} via GATEWAY`, where GATEWAY is the router "
        f"of its network; `ip route` on a node that reaches {pair.peer} shows it"
    )


def _apart(seen: Seen, name: str, peers: list[str], pairs: list[Pair]) -> Finding:
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
        f"give {interface} of {name} a free address of {wanted} (`sudo ip address add ADDRESS/{length} dev {interface}`) and "
        "write it into the inventory, or add routes by a gateway on both sides (`sudo ip route add NETWORK via GATEWAY`)",
        (*errors, *shown[:6]),
        tuple(peers),
    )


def _networks(seen: Seen, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """By node: the interface that the job uses, and its address with length."""
    found = {}
    for name in names:
        address = seen.numeric(name)
        for interface, prefix in seen.prefixes(name):
            if prefix.partition("/")[0] == address:
                found[name] = (interface, prefix)
    return found


def _own_first(seen: Seen, node: str) -> list[tuple[str, str]]:
    """A node's addresses, those on the interface that the job uses before the others."""
    chosen = seen.data_interface(node)
    return sorted(seen.prefixes(node), key=lambda place: place[0] != chosen)


def _within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    if network == "default":
        return True
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def _length(network: str) -> int:
    if network == "default":
        return 0
    found = ipaddress.ip_network(network, strict=False)
    return found.prefixlen


def _family(
    thing: ipaddress.IPv4Address | ipaddress.IPv6Address | ipaddress.IPv4Network | ipaddress.IPv6Network,
) -> str:
    return "-6 " if thing.version == 6 else ""
