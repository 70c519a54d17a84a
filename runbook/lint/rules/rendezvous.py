"""The rendezvous: that what the ranks dial is the master."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import IPv6Address, ip_address, ip_network

from runbook.lint.rules.written import named, said, trusted, wrote
from runbook.lint.subject import InventoryFile
from runbook.load.address import is_ip, is_loopback
from runbook.model.errors import Problem
from runbook.model.inventory import Node

_ADDRESS = ("rendezvous", "address")


def rendezvous_address(file: InventoryFile) -> Iterator[Problem]:
    """Another node's address is an error. One that nobody has may be the master's second card or a name in DNS: only
    where it is very near to the nodes' own is it told."""
    inventory = file.inventory
    if len(inventory.nodes) == 1 or not wrote(file, *_ADDRESS) or not said(file, "rendezvous", "master"):
        return
    nodes = trusted(file, "address", "ssh")
    master = inventory.nodes[0]
    given = inventory.rendezvous.address
    if master not in nodes[:1] or is_loopback(given):
        return
    owner = _owner(given, nodes)
    span = file.document.span(*_ADDRESS)
    if owner is None and (near := _near(given, nodes)) is not None:
        help = f"the master `{master.name}` has {master.address}; leave `address` out and that is dialled"
        yield Problem("inventory.rendezvous-nobody", f"no node has the address {given}, and {near}", span, help)
    elif owner is not None and owner is not master:
        message = f"{given} is `{owner.name}`, and rank 0 listens on the master, `{master.name}`"
        help = f"leave `address` out and {master.address} is dialled, or make `{owner.name}` the master"
        yield Problem("inventory.rendezvous-not-master", message, span, help)


def _owner(given: str, nodes: Sequence[Node]) -> Node | None:
    """Whose address or name it is: the master's in doubt, which is the first. A name counts without its domain if it
    leads to one node only."""
    wanted = _plain(given)
    for node in nodes:
        if wanted in (_plain(node.address), node.name.lower(), _plain(node.ssh.host or "")):
            return node
    if is_ip(given):
        return None
    label = wanted.partition(".")[0]
    alike = [node for node in nodes if label in (_label(node.address), _label(node.name))]
    return alike[0] if len(alike) == 1 or alike[:1] == list(nodes[:1]) else None


def _near(given: str, nodes: Sequence[Node]) -> str | None:
    """Why an address that nobody has looks like a slip; None if it does not."""
    if not is_ip(given):
        label = _label(given)
        other = next((node for node in nodes if _one_slip(label, _label(node.address))), None)
        other = other or next((node for node in nodes if _one_slip(label, node.name.lower())), None)
        return None if other is None else f"it is one letter away from `{other.name}`"
    if "%" in given:
        return None
    network = _network(given)
    inside = [node for node in nodes if is_ip(node.address) and _network(node.address) == network]
    return f"it is in the network of {named(inside)}" if inside else None


def _network(address: str) -> str:
    """As networks of nodes most often are: the first three numbers of IPv4, the first half of IPv6."""
    if ":" not in address:
        return address.rpartition(".")[0]
    return "" if "%" in address else str(ip_network((address, 64), strict=False))


def _one_slip(one: str, other: str) -> bool:
    """Whether one letter replaced, left out or put in turns one into the other."""
    if len(one) > len(other):
        one, other = other, one
    if one == other or len(other) - len(one) > 1 or len(other) < 3:
        return False
    start = next((index for index, letter in enumerate(one) if letter != other[index]), len(one))
    return one[start + (len(one) == len(other)) :] == other[start + 1 :]


def _label(address: str) -> str:
    return "" if is_ip(address) else _plain(address).partition(".")[0]


def _plain(address: str) -> str:
    """Written one way: `FD00:0::1` as `fd00::1`."""
    address = address.lower().rstrip(".")
    if ":" in address and is_ip(address):
        ip = ip_address(address)
        return str(ip.ipv4_mapped or ip) if isinstance(ip, IPv6Address) else address
    return address
