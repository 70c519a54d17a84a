"""Is every node's address its own, of the same family as the others', and on an interface that peers can reach?"""

from __future__ import annotations

from collections import Counter, defaultdict

from runbook.checks.network.common import listed
from runbook.checks.network.observed import Observations, Pair, version
from runbook.load.address import is_ip
from runbook.model.commands import word
from runbook.model.verdict import Finding

Found = dict[str, list[Finding]]


def address_findings(seen: Observations) -> Found:
    """What is wrong with the addresses before a single packet is looked at."""
    if seen.at.inventory.one_machine or len(seen.nodes) < 2:
        return {}
    return _shared(seen) or _families(seen)


def _shared(seen: Observations) -> Found:
    """Two nodes with one address: in the inventory, or on their interfaces."""
    at = seen.at
    found: Found = defaultdict(list)
    nodes = seen.nodes
    for index, first in enumerate(nodes):
        for second in nodes[index + 1 :]:
            apart = at.machine(first.name) != at.machine(second.name)
            if first.address == second.address and (apart or second.connection != "local"):
                found[second.name].append(_written_twice(seen, first.name, second.name, first.address, apart=apart))
                continue
            if not apart:
                continue
            for whose, also in ((first.name, second.name), (second.name, first.name)):
                address = seen.numeric(whose)
                if all(address in at.own_addresses(name) for name in (whose, also)):
                    guilty = second.name if seen.numeric(also) == address else also
                    found[guilty].append(_carried_twice(seen, guilty, first.name, second.name, address))
                    break
    return found


def _written_twice(seen: Observations, first: str, second: str, address: str, *, apart: bool) -> Finding:
    own = [a for a in seen.at.own_addresses(second) if a != address] if apart else []
    right = own[0] if own else "ITS ADDRESS"
    where = "which are two machines" if apart else "and both lead to one machine"
    return Finding(
        "duplicate-address",
        f"the inventory gives {first} and {second} the same address {address}, {where}",
        f"give {second} its own in the inventory: `{second}: {{address: {right}}}`",
        tuple(f"addresses of {name}: {', '.join(seen.at.own_addresses(name))}" for name in (first, second)),
        (first,),
    )


def _carried_twice(seen: Observations, guilty: str, first: str, second: str, address: str) -> Finding:
    places = {name: _place(seen, name, address) for name in (first, second)}
    interface, prefix = places[guilty]
    mine = seen.numeric(guilty) == address
    fix = f"sudo ip address del {word(prefix)} dev {word(interface)}"
    if mine:
        fix = f"give {guilty} an address of its own (`{fix}`, then `sudo ip address add … dev {word(interface)}`), and correct the inventory"
    return Finding(
        "duplicate-address",
        f"{first} and {second} both have the address {address}: packets reach now the one, now the other",
        fix,
        tuple(f"{name} has {prefix} on {interface}" for name, (interface, prefix) in places.items()),
        (first if guilty == second else second,),
    )


def _place(seen: Observations, node: str, address: str) -> tuple[str, str]:
    """The interface that carries an address, and the address with its length."""
    for interface, prefix in seen.prefixes(node):
        if prefix.partition("/")[0] == address:
            return interface, prefix
    return "IFACE", address


def _families(seen: Observations) -> Found:
    """The job speaks one family of addresses: a node whose interface has none of it cannot be reached."""
    reach = {node.name: _versions(seen, node.name) for node in seen.nodes}
    if len(reach) < 2 or not all(reach.values()) or set.intersection(*reach.values()):
        return {}
    votes = Counter(version for versions in reach.values() for version in versions)
    common = 4 if votes[4] >= votes[6] else 6
    found: Found = {}
    for name, versions in reach.items():
        if common in versions:
            continue
        interface = seen.data_interface(name) or "IFACE"
        others = [other for other, theirs in reach.items() if common in theirs]
        found[name] = [
            Finding(
                "ipv6-ipv4-mixing",
                f"{name} is dialled at {seen.numeric(name)} (IPv{6 if common == 4 else 4}), {listed(others)} "
                f"at IPv{common}: these cannot talk to each other",
                f"give {interface} of {name} an IPv{common} address in the network of the others "
                f"({_example(seen, others[0])}), and write it into the inventory",
                tuple(f"{other} is dialled at {seen.numeric(other)}" for other in reach),
                tuple(others),
            )
        ]
    return found


def _versions(seen: Observations, node: str) -> set[int]:
    """The families of addresses on the interface that the job uses there."""
    address, interface = seen.numeric(node), seen.data_interface(node)
    held = {version(prefix) for _, prefix in seen.prefixes(node, interface)} if interface else set()
    return held | ({version(address)} if is_ip(address) else set())


def _example(seen: Observations, node: str) -> str:
    interface, prefix = _place(seen, node, seen.numeric(node))
    return f"{node} has {prefix} on {interface}"


def wrong_interface(seen: Observations, pairs: list[Pair]) -> Found:
    """Nodes whose chosen interface nobody reaches, while their address in the inventory, on another one, answers."""
    found: Found = {}
    for peer in dict.fromkeys(pair.peer for pair in pairs):
        node = seen.at.inventory.node(peer)
        stuck = [pair for pair in pairs if pair.peer == peer and pair.target.get("spare_answers")]
        if not stuck:
            continue
        chosen, better = seen.data_interface(peer), _place(seen, peer, node.address)[0]
        callers = [pair.source for pair in stuck]
        found[peer] = [
            Finding(
                "interface-wrong",
                f"{peer} is told to use {chosen} ({seen.numeric(peer)}), where {listed(callers)} cannot reach it; "
                f"at {node.address} on {better} it answers",
                f"name that interface for {peer} in the inventory: "
                f"`env: {{NCCL_SOCKET_IFNAME: {better}, GLOO_SOCKET_IFNAME: {better}}}`",
                tuple(
                    f"{pair.source} → {seen.numeric(peer)}: {pair.route.get('error') or 'no answer'}"
                    for pair in stuck[:4]
                ),
                tuple(callers),
            )
        ]
    return found


def strangers(seen: Observations) -> Found:
    """Nodes for whose address another machine answers on the segment, by its hardware address; told once somebody's TCP
    to that address came to nothing."""
    found: Found = {}
    for pair in seen.pairs:
        opened = [dial.outcome in ("open", "lost") for dial in pair.full_dials]
        if not opened or all(opened) or pair.peer in found:
            continue
        mac = _answers_for(seen, pair)
        if mac is not None and "PERMANENT" in ((pair.target.get("neighbour") or {}).get("state") or []):
            found.setdefault(pair.source, []).append(_fixed_entry(seen, pair, mac))
        elif mac is not None:
            found[pair.peer] = [_stranger(seen, pair, mac)]
    return found


def _answers_for(seen: Observations, pair: Pair) -> str | None:
    """The hardware address that the peer's address leads to, when that is not one of the peer's."""
    mac = _neighbour(pair)
    macs = [entry["mac"] for entry in seen.interfaces(pair.peer).values()]
    if mac is None or not macs or mac in macs or pair.route.get("via"):
        return None
    # A virtual network answers for everybody with one hardware address: that is no second machine.
    return None if any(_neighbour(other) == mac and other.peer != pair.peer for other in seen.pairs) else mac


def _neighbour(pair: Pair) -> str | None:
    mac = (pair.target.get("neighbour") or {}).get("lladdr")
    return str(mac) if mac else None


def _fixed_entry(seen: Observations, pair: Pair, mac: str) -> Finding:
    """An entry of the ARP table that somebody wrote by hand, and that is no longer true."""
    interface = seen.data_interface(pair.peer) or "IFACE"
    mine = seen.interfaces(pair.peer).get(interface, {}).get("mac", "?")
    return Finding(
        "host-unreachable",
        f"{pair.source} has a fixed ARP entry for {pair.numeric}, the address of {pair.peer}: it leads to {mac}, while "
        f"{interface} of {pair.peer} is {mine}",
        f"sudo ip neigh del {word(pair.numeric)} dev {word(pair.route.get('dev') or 'IFACE')}",
        (
            f"ip neigh on {pair.source}: {word(pair.numeric)} lladdr {mac} PERMANENT",
            *(str(dial) for dial in pair.dials[:3]),
        ),
        (pair.peer,),
    )


def _stranger(seen: Observations, pair: Pair, mac: str) -> Finding:
    owner = seen.owner_of(mac)
    interface = seen.data_interface(pair.peer) or "IFACE"
    mine = seen.interfaces(pair.peer).get(interface, {}).get("mac", "?")
    return Finding(
        "duplicate-address",
        f"another machine uses {pair.numeric}, the address of {pair.peer}: {pair.source} reaches {mac}"
        + (f" ({owner})" if owner else "")
        + f", while {interface} of {pair.peer} is {mine}",
        f"find the machine {mac} (the switch's MAC table tells its port), take {pair.numeric} off it, and on {pair.source} "
        f"forget it: `sudo ip neigh flush to {word(pair.numeric)}`",
        (f"ip neigh on {pair.source}: {word(pair.numeric)} lladdr {mac}", *(str(dial) for dial in pair.dials[:3])),
        (pair.source,),
    )
