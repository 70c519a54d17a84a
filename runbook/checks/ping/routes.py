"""Is every node's address its own and on an interface that peers reach, and has the kernel a route to every peer?"""

from __future__ import annotations

import ipaddress
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.network.routing import Sent, first_route_refusal, ip_family_switch, quoted_route
from runbook.checks.ping.observations import Observations, Pair, ip_version
from runbook.files.address import is_ip, is_loopback, preferred_address
from runbook.launch.ranks import socket_interface
from runbook.model.command_quoting import shell_word
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.units import name_list_text
from runbook.model.verdict import Finding, FindingsByNode


def address_findings(seen: Observations) -> FindingsByNode:
    """Findings by node about addresses, before any packet is looked at."""
    if seen.at.inventory.one_machine or len(seen.nodes) < 2:
        return {}
    return (
        _shared_address_findings(seen)
        or _misled_login_findings(seen)
        or _foreign_address_findings(seen)
        or _local_route_findings(seen)
        or _ip_version_findings(seen)
    )


def _shared_address_findings(seen: Observations) -> FindingsByNode:
    """Findings for two nodes with one address, in the inventory or on their interfaces."""
    at = seen.at
    found: FindingsByNode = defaultdict(list)
    for first, second in _pairs_sharing_address(seen):
        apart = at.machine(first.name) != at.machine(second.name)
        if first.address == second.address and (apart or second.connection != "local"):
            found[second.name].append(
                _inventory_duplicate_finding(seen, first.name, second.name, first.address, apart=apart)
            )
            continue
        if not apart:
            continue
        for whose, also in ((first.name, second.name), (second.name, first.name)):
            address = seen.numeric(whose)
            if {whose, also} <= set(seen.owners.get(address, ())):
                guilty = second.name if seen.numeric(also) == address else also
                found[guilty].append(_interface_duplicate_finding(seen, guilty, first.name, second.name, address))
                break
    return found


def _misled_login_findings(seen: Observations) -> FindingsByNode:
    """Findings for nodes whose login leads to the machine of another node, which has the other node's address and not
    theirs."""
    found: FindingsByNode = {}
    for nodes in values_by_key((seen.at.machine(node.name), node) for node in seen.nodes).values():
        own = seen.own[nodes[0].name]
        there = [node.name for node in nodes if node.address in own]
        for node in nodes if there else ():
            if node.address in own or not is_ip(node.address) or is_loopback(node.address):
                continue
            found[node.name] = [
                finding_for(
                    "master-addr-wrong-host",
                    f"the login to {node.name} leads to the machine of {there[0]}: {node.name}'s address, "
                    f"{node.address}, is on none of its interfaces",
                    (f"addresses of that machine: {', '.join(own)}",),
                    (there[0],),
                    way="login-elsewhere",
                    peer=node.name,
                    address=node.address,
                )
            ]
    return found


def _foreign_address_findings(seen: Observations) -> FindingsByNode:
    """Findings for nodes for which the inventory has the address of another node: what is measured there is not
    theirs."""
    found: FindingsByNode = {}
    for node in seen.nodes:
        own, machine = seen.own[node.name], seen.at.machine(node.name)
        others = [name for name in seen.owners.get(node.address, ()) if seen.at.machine(name) != machine]
        if not own or not others or node.address in own:
            continue
        evidence = (f"addresses of {others[0]}: {', '.join(seen.own[others[0]])}",)
        found[node.name] = [wrong_address_finding(seen, node.name, f"it is {others[0]}'s", evidence, others[0])]
    return found


def wrong_address_finding(seen: Observations, name: str, whose: str, evidence: tuple[str, ...], peer: str) -> Finding:
    """The finding when the inventory's address of a node is on none of its interfaces. The remedy names its address in
    the same network, if there is one. `whose` says what is known of the wrong address; `peer` is the node that met
    it."""
    wrong, own = ipaddress.ip_address(seen.numeric(name)), seen.own[name]
    prefixes = [ipaddress.ip_interface(prefix) for _, prefix in seen.prefixes(name)]
    near = [str(prefix.ip) for prefix in prefixes if wrong in prefix.network]
    return finding_for(
        "master-addr-wrong-host",
        f"the inventory's address of {name}, {wrong}, is on none of its interfaces: {whose}",
        (f"addresses of {name}: {', '.join(own)}", *evidence),
        (peer,),
        way="not-its-own",
        peer=name,
        right=near[0] if near else preferred_address(own),
    )


def _local_route_findings(seen: Observations) -> FindingsByNode:
    """Findings for nodes whose kernel keeps packets to a peer: it has a route of type `local`, without the address on
    an interface."""
    found: FindingsByNode = defaultdict(list)
    for pair in seen.pairs:
        if not pair.route.get("local") or pair.numeric in seen.own[pair.source] or is_loopback(pair.numeric):
            continue
        target, route = ipaddress.ip_address(pair.numeric), f"local {pair.numeric}"
        found[pair.source].append(
            finding_for(
                "no-route",
                f"{pair.source} takes {pair.numeric}, the address of {pair.peer}, for one of its own: a route of type "
                "`local` keeps all that is sent there",
                (
                    f"{pair.source}: ip route get {pair.numeric}: local, dev {pair.route.get('dev')}",
                    f"addresses of {pair.source}: {', '.join(seen.own[pair.source])}",
                ),
                (pair.peer,),
                way="delete",
                family=ip_family_switch(target),
                route=quoted_route(route),
            )
        )
    return dict(found)


def _pairs_sharing_address(seen: Observations) -> list[tuple[Node, Node]]:
    """Pairs of nodes in which one has the address at which the other is dialled, in the inventory's order."""
    place = {node.name: at for at, node in enumerate(seen.nodes)}
    written = values_by_key((node.address, node.name) for node in seen.nodes)
    pairs = {
        tuple(sorted((place[node.name], place[other])))
        for node in seen.nodes
        for other in (*written[node.address], *seen.owners.get(seen.numeric(node.name), ()))
        if other != node.name and other in place
    }
    return [(seen.nodes[one], seen.nodes[other]) for one, other in sorted(pairs)]


def _inventory_duplicate_finding(seen: Observations, first: str, second: str, address: str, *, apart: bool) -> Finding:
    """The finding for an address that the inventory gives to two nodes."""
    own = [a for a in seen.own[second] if a != address] if apart else []
    right = own[0] if own else "ITS ADDRESS"
    where = "which are two machines" if apart else "and both lead to one machine"
    return finding_for(
        "duplicate-address",
        f"the inventory gives {first} and {second} the same address {address}, {where}",
        tuple(f"addresses of {name}: {', '.join(seen.own[name])}" for name in (first, second)),
        (first,),
        way="inventory",
        second=second,
        right=right,
    )


def _interface_duplicate_finding(seen: Observations, guilty: str, first: str, second: str, address: str) -> Finding:
    """The finding for an address that two nodes have on their interfaces."""
    places = {name: _interface_and_prefix(seen, name, address) for name in (first, second)}
    interface, prefix = places[guilty]
    return finding_for(
        "duplicate-address",
        f"{first} and {second} both have the address {address}: packets reach sometimes the one, sometimes the other",
        tuple(f"{name} has {prefix} on {interface}" for name, (interface, prefix) in places.items()),
        (first if guilty == second else second,),
        way="only-one" if seen.numeric(guilty) == address else "one-more",
        guilty=guilty,
        prefix=shell_word(prefix),
        interface=shell_word(interface),
    )


def _interface_and_prefix(seen: Observations, node: str, address: str) -> tuple[str, str]:
    """The interface that has an address, and the address with its length; placeholders when they are not known."""
    return _interface_with_address(seen, node, address) or ("IFACE", address)


def _interface_with_address(seen: Observations, node: str, address: str) -> tuple[str, str] | None:
    """The interface that has an address, and the address with its length; None when it is not known."""
    return next((place for place in seen.prefixes(node) if place[1].partition("/")[0] == address), None)


def _ip_version_findings(seen: Observations) -> FindingsByNode:
    """Findings for nodes without an address of the IP version that most others use: the job speaks only one version."""
    reach = {node.name: _interface_ip_versions(seen, node.name) for node in seen.nodes}
    if len(reach) < 2 or not all(reach.values()) or set.intersection(*reach.values()):
        return {}
    votes = Counter(version for versions in reach.values() for version in versions)
    common = 4 if votes[4] >= votes[6] else 6
    found: FindingsByNode = {}
    for name, versions in reach.items():
        if common in versions:
            continue
        interface = seen.data_interface(name) or "IFACE"
        others = [other for other, theirs in reach.items() if common in theirs]
        found[name] = [
            finding_for(
                "ipv6-ipv4-mixing",
                f"{name} is dialled at {seen.numeric(name)} (IPv{6 if common == 4 else 4}), {name_list_text(others)} "
                f"at IPv{common}: these cannot talk to each other",
                tuple(f"{other} is dialled at {seen.numeric(other)}" for other in reach),
                tuple(others),
                way="address",
                interface=interface,
                name=name,
                common=common,
                example=_address_example_text(seen, others[0]),
            )
        ]
    return found


def _interface_ip_versions(seen: Observations, node: str) -> set[int]:
    """The IP versions of the addresses on the interface that the job uses on a node."""
    address, interface = seen.numeric(node), seen.data_interface(node)
    held = {ip_version(prefix) for _, prefix in seen.prefixes(node, interface)} if interface else set()
    return held | ({ip_version(address)} if is_ip(address) else set())


def _address_example_text(seen: Observations, node: str) -> str:
    interface, prefix = _interface_and_prefix(seen, node, seen.numeric(node))
    return f"{node} has {prefix} on {interface}"


def address_warnings(seen: Observations, node: Node) -> Iterator[str]:
    """Warnings about what may lead the job's traffic elsewhere without stopping what was tried here."""
    place, dialled = seen.data_interface(node.name), seen.numeric(node.name)
    held = [prefix.partition("/")[0] for _, prefix in seen.prefixes(node.name, place)] if place else []
    alike = [address for address in held if ip_version(address) == ip_version(dialled)]
    pinned = seen.at.inventory.rendezvous.backend == "gloo" and socket_interface(seen.at.inventory, node)
    if pinned and dialled in alike[1:]:
        yield (
            f"{place} carries {alike[0]} before {dialled}: gloo tells its peers to dial the first, so the others must "
            "reach that one as well"
        )
    leaving = values_by_key((pair.route.get("dev"), pair.peer) for pair in seen.pairs if pair.source == node.name)
    for device, peers in leaving.items():
        if place and device and device != place:
            yield (
                f"what it sends to {name_list_text(peers)} leaves by {device}, not by {place}: `ip route get` tells why"
            )


def wrong_interface_findings(seen: Observations, pairs: list[Pair]) -> FindingsByNode:
    """Findings for nodes whose chosen interface cannot be reached, while their address in the inventory, on another
    interface, answers."""
    found: FindingsByNode = {}
    for peer in dict.fromkeys(pair.peer for pair in pairs):
        node = seen.at.inventory.node(peer)
        stuck = [pair for pair in pairs if pair.peer == peer and pair.target.get("spare_answers")]
        if not stuck:
            continue
        chosen, better = seen.data_interface(peer), _interface_and_prefix(seen, peer, node.address)[0]
        callers = [pair.source for pair in stuck]
        found[peer] = [
            finding_for(
                "interface-wrong",
                f"{peer} is set to use {chosen} ({seen.numeric(peer)}), where "
                f"{name_list_text(callers)} cannot reach it; "
                f"at {node.address} on {better} it answers",
                tuple(
                    f"{pair.source} → {seen.numeric(peer)}: {pair.route.get('error') or 'no answer'}"
                    for pair in stuck[:4]
                ),
                tuple(callers),
                way="peer",
                peer=peer,
                better=better,
            )
        ]
    return found


def flapped_link_findings(seen: Observations) -> FindingsByNode:
    """Findings for nodes whose link went down or up since `reach` looked, by the kernel's own count: losses meanwhile
    follow from that."""
    found: FindingsByNode = {}
    for node in seen.nodes:
        name = seen.data_interface(node.name)
        now = seen.interface(node.name, name) if name else None
        before = seen.at.facts(node.name).get("interfaces", {}).get(name, {}).get("carrier_changes")
        after = now.get("carrier_changes") if now else None
        if name is None or before is None or after is None or after <= before:
            continue
        peers = dict.fromkeys(peer for pair in seen.pairs if node.name in pair.ends for peer in pair.ends - {node.name})
        found[node.name] = [
            finding_for(
                "packet-loss",
                f"the link of {name} on {node.name} does not stay up: it went down or up {after - before} times since "
                "the run began",
                (f"{node.name}: /sys/class/net/{name}/carrier_changes was {before}, and is {after}",),
                tuple(peers),
                way="interface",
                name=node.name,
                interface=shell_word(name),
            )
        ]
    return found


def address_conflict_findings(seen: Observations) -> FindingsByNode:
    """Findings for nodes whose address another machine on the segment uses, by its hardware address. Only where TCP to
    that address failed for a node."""
    found: FindingsByNode = {}
    for pair in seen.pairs:
        opened = [dial.outcome in ("open", "lost") for dial in pair.full_dials]
        if not opened or all(opened) or pair.peer in found:
            continue
        mac = _foreign_mac(seen, pair)
        if mac is None:
            continue
        interface = seen.data_interface(pair.peer) or "IFACE"
        own = seen.interface(pair.peer, interface)
        mine = f"{interface} of {pair.peer} is {own['mac'] if own else '?'}"
        if _is_permanent_entry(pair):
            found.setdefault(pair.source, []).append(_permanent_arp_finding(pair, mac, mine))
        else:
            found[pair.peer] = [_arp_conflict_finding(seen, pair, mac, mine)]
    return found


def _foreign_mac(seen: Observations, pair: Pair) -> str | None:
    """The hardware address that the peer's address leads to, when it is not one of the peer's own; else None."""
    mac = _neighbour_mac(pair)
    macs = [entry["mac"] for entry in seen.interfaces(pair.peer).values()]
    if mac is None or not macs or mac in macs or pair.route.get("via"):
        return None
    if _is_permanent_entry(pair):
        return mac  # it was written by hand, and tells nothing about who answers
    # A virtual network answers for all addresses with one hardware address: that is no second machine.
    return None if any(_neighbour_mac(other) == mac and other.peer != pair.peer for other in seen.pairs) else mac


def _is_permanent_entry(pair: Pair) -> bool:
    """Whether somebody wrote the peer's entry in the source's table of neighbours."""
    return "PERMANENT" in (pair.neighbour.get("state") or ())


def _neighbour_mac(pair: Pair) -> str | None:
    """The peer's hardware address in the source's table of neighbours, or None."""
    mac = pair.neighbour.get("lladdr")
    return str(mac) if mac else None


def _permanent_arp_finding(pair: Pair, mac: str, mine: str) -> Finding:
    """The finding for a permanent entry in the source's ARP table, written by hand, that is wrong now."""
    at = shell_word(pair.numeric)
    return finding_for(
        "host-unreachable",
        f"{pair.source} has a fixed ARP entry for {pair.numeric}, the address of {pair.peer}: it leads to {mac}, while "
        f"{mine}",
        (f"ip neigh on {pair.source}: {at} lladdr {mac} PERMANENT", *(str(dial) for dial in pair.dials[:3])),
        (pair.peer,),
        way="neighbour",
        numeric=at,
        dev=shell_word(pair.route.get("dev") or "IFACE"),
    )


def _arp_conflict_finding(seen: Observations, pair: Pair, mac: str, mine: str) -> Finding:
    """The finding when another machine answers ARP for the peer's address."""
    owner = seen.owner_of(mac)
    at = shell_word(pair.numeric)
    return finding_for(
        "duplicate-address",
        f"another machine uses {pair.numeric}, the address of {pair.peer}: {pair.source} reaches {mac}"
        + (f" ({owner})" if owner else "")
        + f", while {mine}",
        (f"ip neigh on {pair.source}: {at} lladdr {mac}", *(str(dial) for dial in pair.dials[:3])),
        (pair.source,),
        way="stranger",
        mac=mac,
        numeric=pair.numeric,
        source=pair.source,
        numeric_typed=at,
    )


def route_findings(seen: Observations, pairs: list[Pair]) -> dict[str, list[Finding]]:
    """Findings for pairs without a route, by the node that has to be mended."""
    found: dict[str, list[Finding]] = defaultdict(list)
    grouped: dict[tuple[str, str, str], list[Pair]] = defaultdict(list)
    apart: list[Pair] = []
    stuck = {(pair.source, pair.peer) for pair in pairs}
    for pair in pairs:
        own = None if is_broadcast_address(seen, pair) else _lost_own_route_reason(seen, pair)
        reason = _refusal_reason(pair) or own or narrow_netmask_reason(seen, pair)
        if reason is None and (pair.peer, pair.source) in stuck:
            apart.append(pair)
        else:
            reason = reason or ("", _return_route_remedy(seen, pair))
            grouped[(pair.source, *reason)].append(pair)
    for (source, why, fix), those in grouped.items():
        found[source].append(_no_route_finding(source, those, f": {why}" if why else "", fix))
    blame = seen.blame(pair.ends for pair in apart)
    for name, peers in blame.nodes.items():
        unrouted = _separate_networks_finding(seen, name, peers, [pair for pair in apart if name in pair.ends])
        found[name].append(blame.told(unrouted))
    return dict(found)


def _no_route_finding(source: str, pairs: list[Pair], why: str, fix: str) -> Finding:
    """The finding for a node that has no route to these peers."""
    peers = tuple(pair.peer for pair in pairs)
    where = name_list_text(f"{pair.peer} ({pair.numeric})" for pair in pairs)
    said = (f"{source}: ip route get {pair.numeric}: {pair.route.get('error') or 'broadcast'}" for pair in pairs[:4])
    return Finding("no-route", f"{source} has no route to {where}{why}", fix, tuple(said), peers)


def _refusal_reason(pair: Pair) -> tuple[str, str] | None:
    """The reason and the remedy when a route or rule refuses these packets, or None. The kernel did refuse, so a rule
    that only may refuse is the most likely reason."""
    found = first_route_refusal(Sent(pair.numeric, pair.route.get("src")), pair.route)
    if found is None:
        return None
    return found.why if found.certain else f"most likely {found.why}", found.fix


def _lost_own_route_reason(seen: Observations, pair: Pair) -> tuple[str, str] | None:
    """The reason and the remedy when the peer is in the network of one of the source's addresses, but the route to that
    network is gone; else None."""
    for interface, prefix in _addresses_job_first(seen, pair.source):
        network = ipaddress.ip_interface(prefix).network
        there = any(route.get("dst") == str(network) for route in pair.route.get("routes") or [])
        if ipaddress.ip_address(pair.numeric) in network and network.num_addresses > 1 and not there:
            why = f"the route to its own network {network} on {interface} ({prefix}) is gone"
            return why, remedy_from_page(
                "no-route",
                "own-network",
                family=ip_family_switch(network),
                network=network,
                interface=shell_word(interface),
                source=shell_word(prefix.partition("/")[0]),
            )
    return None


def narrow_netmask_reason(seen: Observations, pair: Pair) -> tuple[str, str] | None:
    """The reason and the remedy when the peer's network includes our address and our network does not include the
    peer's: our prefix is too long. Else None."""
    for interface, prefix in _addresses_job_first(seen, pair.source):
        mine = ipaddress.ip_interface(prefix)
        if ipaddress.ip_address(pair.numeric) in mine.network and not is_broadcast_address(seen, pair):
            continue
        for other in seen.answers:
            for _, theirs in seen.prefixes(other):
                network = ipaddress.ip_interface(theirs).network
                if other != pair.source and mine.ip in network and ipaddress.ip_address(pair.numeric) in network:
                    why = f"{interface} has {prefix}, which leaves {pair.peer} out, while {other} has {theirs}"
                    address = f"{mine.ip}/{network.prefixlen}"
                    return why, remedy_from_page(
                        "no-route", "netmask", address=address, narrow=prefix, interface=shell_word(interface)
                    )
    return None


def is_broadcast_address(seen: Observations, pair: Pair) -> bool:
    """Whether the source's netmask makes the peer's address the broadcast address of its network: the kernel then has a
    route, but sends nothing to a single machine."""
    address = ipaddress.ip_address(pair.numeric)
    networks = [ipaddress.ip_interface(prefix).network for _, prefix in seen.prefixes(pair.source)]
    return any(address == net.broadcast_address for net in networks if net.version == 4 and net.num_addresses > 2)


def _return_route_remedy(seen: Observations, pair: Pair) -> str:
    """The remedy when the peer has a route to this node and this node has none back: through the gateway that leads to
    others, if there is one, for all of the peer's network."""
    gateways = [other.route["via"] for other in seen.pairs if other.source == pair.source and other.route.get("via")]
    if gateways:
        place = _interface_with_address(seen, pair.peer, pair.numeric)
        network = ipaddress.ip_interface(place[1]).network if place else None
        mine = [ipaddress.ip_interface(prefix).ip for _, prefix in seen.prefixes(pair.source)]
        whole = network is not None and not any(own in network for own in mine)
        target = shell_word(str(network) if whole else pair.numeric)
        return remedy_from_page("no-route", "gateway", peer=target, gateway=shell_word(gateways[0]))
    return remedy_from_page(
        "no-route", "no-gateway", source=pair.source, address=shell_word(pair.numeric), peer=pair.peer
    )


def _separate_networks_finding(seen: Observations, name: str, peers: list[str], pairs: list[Pair]) -> Finding:
    """The finding for nodes in different networks without a route between them."""
    mine = _job_interface_addresses(seen, [name])
    theirs = _job_interface_addresses(seen, peers)
    interface = seen.data_interface(name) or "IFACE"
    networks = list(dict.fromkeys(str(ipaddress.ip_interface(prefix).network) for _, prefix in theirs.values()))
    shown = [f"{node}: {interface} has {prefix}" for node, (interface, prefix) in {**mine, **theirs}.items()]
    place = (
        f"its {interface} has {mine[name][1]}, and they are in {name_list_text(networks)}" if mine and networks else ""
    )
    errors = [f"{p.source}: ip route get {p.numeric}: {p.route.get('error') or 'broadcast'}" for p in pairs[:3]]
    wanted = networks[0] if networks else "THE NETWORK OF THE OTHERS"
    length = wanted.partition("/")[2] or "LENGTH"
    return finding_for(
        "no-route",
        f"{name} ({seen.numeric(name)}) and {name_list_text(peers)} have no route to each other"
        + (f": {place}" if place else ""),
        (*errors, *shown[:6]),
        tuple(peers),
        way="networks",
        interface=interface,
        name=name,
        wanted=wanted,
        length=length,
        interface_typed=shell_word(interface),
    )


def _job_interface_addresses(seen: Observations, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """By node, the interface that has the address which the job dials, and that address with its length."""
    return {name: place for name in names if (place := _interface_with_address(seen, name, seen.numeric(name)))}


def _addresses_job_first(seen: Observations, node: str) -> list[tuple[str, str]]:
    """A node's addresses, with those on the interface that the job uses first."""
    chosen = seen.data_interface(node)
    return sorted(seen.prefixes(node), key=lambda place: place[0] != chosen)
