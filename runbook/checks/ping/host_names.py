"""Do the names that the job uses mean the right machine, on every node?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runbook.causes.catalogue import finding_for, remedy_from_page
from runbook.checks.ping.observations import Observations, ip_version
from runbook.files.address import is_ip, is_link_local, is_loopback
from runbook.launch.ranks import socket_interface
from runbook.model.command_quoting import shell_word
from runbook.model.inventory import Node
from runbook.model.remedy import Remedy
from runbook.model.units import name_list_text
from runbook.model.verdict import Finding

MIN_SLOW_LOOKUP_S = 2.0
"""Seconds. A lookup that takes longer has waited for a name server that did not answer."""


def names_to_resolve(met: Iterable[Node], rendezvous: str) -> list[str]:
    """The names that a node resolves when it meets these nodes: the rendezvous and every address of theirs that is a
    name."""
    return sorted({address for address in (rendezvous, *(node.address for node in met)) if not is_ip(address)})


def name_findings(seen: Observations, node: Node) -> list[Finding]:
    """Findings for names that are wrong on this node: they mean nothing, loopback, another machine, or another IP
    version."""
    at, answer = seen.at, seen.answers[node.name]
    if at.inventory.one_machine or len(at.nodes) == 1:
        return []
    meant: dict[str, str] = {other.address: other.name for other in at.nodes}
    meant.setdefault(at.inventory.rendezvous.address, at.inventory.rendezvous.master)
    names = (
        (name, lookup)
        for name, lookup in answer["names"].items()
        if not _is_undialled_loopback_name(seen, node, name, lookup)
    )
    found = [_name_finding(seen, node, name, meant[name], lookup) for name, lookup in names]
    if at.inventory.rendezvous.backend == "gloo" and not socket_interface(at.inventory, node):
        found.append(own_name_finding(seen, node))
    return [finding for finding in found if finding is not None]


def _is_undialled_loopback_name(seen: Observations, node: Node, name: str, lookup: Mapping[str, Any]) -> bool:
    """Whether this is the node's own name, which means loopback there and which the job does not use: by an interface
    in the inventory, peers dial another address."""
    return (
        name == node.address != seen.at.inventory.rendezvous.address
        and seen.data_address(node.name) != name
        and is_loopback((lookup["addresses"] or [""])[0])
    )


def name_warnings(seen: Observations, node: Node) -> Iterator[str]:
    """Warnings about names that mean loopback without harm, and about name servers that delay the job without stopping
    it."""
    lookups: Mapping[str, Mapping[str, Any]] = seen.answers[node.name]["names"]
    for name, said in lookups.items():
        if len(seen.at.nodes) > 1 and _is_undialled_loopback_name(seen, node, name, said):
            means = ", ".join(said["addresses"])
            yield f"harmless to this job: its own name {name} means {means} there; peers dial the interface's address"
    slow = {
        name: said["seconds"]
        for name, said in lookups.items()
        if said["addresses"] and said["seconds"] >= MIN_SLOW_LOOKUP_S
    }
    if slow:
        name, seconds = max(slow.items(), key=lambda item: item[1])
        yield (
            f"looking up {name} takes {seconds:.1f} s: {_name_servers_text(seen, node)} in "
            "/etc/resolv.conf answers late or never"
        )
    elif seen.answers[node.name]["reverse_late"]:
        yield (
            f"{_name_servers_text(seen, node)} in /etc/resolv.conf does not answer: torch "
            "asks for the name of every machine "
            "that it connects to, and its ranks start 5 s later or more"
        )


def _name_finding(seen: Observations, node: Node, name: str, target: str, lookup: Mapping[str, Any]) -> Finding | None:
    """The finding for a name that should mean the node `target`, or None when it does or no harm is proven."""
    addresses: list[str] = lookup["addresses"] or []
    truth = seen.own[target]
    if addresses and addresses[0] in truth:
        return None
    right = next((a for a in truth if ":" not in a), truth[0] if truth else "ADDRESS")
    if seen.data_address(target) in truth:
        right = seen.data_address(target)
    peers = (target,) if target != node.name else ()
    fix = _name_remedy(node, name, right, lookup["in_hosts"])
    lines = tuple(f"{node.name}: /etc/hosts:{number}: {text}" for number, text in lookup["in_hosts"])
    if not addresses:
        return _unresolvable_name_finding(seen, node, name, lookup, fix, peers)
    means = ", ".join(addresses)
    looked_up = (f"getaddrinfo({name}) on {node.name}: {means}", *lines)
    if all(is_loopback(address) for address in addresses):
        says = (
            f"on {node.name} the name {name} means {means}: this node itself, not {target}"
            if target != node.name
            else f"{node.name} resolves its own name {name} to {means}, which no other node can dial"
        )
        return Finding("name-resolves-to-loopback", says, fix, looked_up, peers)
    if not truth:
        return None
    first = addresses[0]
    if right in addresses:
        spoken = {ip_version(address) for address in seen.own[node.name] if not is_link_local(address)}
        if ip_version(first) != ip_version(right) and ip_version(first) not in spoken:
            return None  # addresses of an IP version that this machine does not use are not dialled
        means = name_list_text(addresses)
        says = f"on {node.name} the name {name} means {means}, and {first}, which is dialled first, is not {target}'s"
        cause = "name-resolves-to-loopback" if is_loopback(first) else "name-wrong-address"
        return Finding(cause, says, fix, looked_up, peers)
    if set(addresses) & set(truth):
        return None
    owners = {owner for address in addresses for owner in seen.owners.get(address, ())}
    others = [owner.name for owner in seen.at.nodes if owner.name in owners - {target}]
    elsewhere = [found for where, found in seen.meanings.get(name, ()) if where != node.name]
    if not others and not any(not found & set(addresses) for found in elsewhere):
        return None  # the name means the same on every node: an address behind NAT
    evidence = (*looked_up, f"{target} has {', '.join(truth)}")
    families = {ip_version(address) for address in addresses}
    if not others and not families & {ip_version(address) for address in truth if not is_link_local(address)}:
        mine, its = ("IPv6", "IPv4") if families == {6} else ("IPv4", "IPv6")
        says = f"on {node.name} the name {name} means {means}, {mine} only, and {target} has only {its}: {right}"
        return Finding("ipv6-ipv4-mixing", says, fix, evidence, peers)
    whose = f"the address of {others[0]}" if others else f"not an address of {target}"
    says = f"on {node.name} the name {name} means {means}, which is {whose}"
    return Finding("name-wrong-address", says, fix, evidence, peers)


def _unresolvable_name_finding(
    seen: Observations, node: Node, name: str, lookup: Mapping[str, Any], fix: str, peers: tuple[str, ...]
) -> Finding:
    """The finding for a name that the node cannot resolve, with the reason as far as it is known."""
    servers, answer = _name_servers_text(seen, node), seen.answers[node.name]
    late = f" within {lookup['seconds']:.1f} s" if lookup["seconds"] >= MIN_SLOW_LOOKUP_S else ""
    says = f"{node.name} cannot resolve {name}" + (f": no answer{late} from {servers}" if late else "")
    evidence = [f"getaddrinfo({name}) on {node.name} finds nothing{late}; /etc/resolv.conf: {servers}"]
    sources = answer.get("name_sources") or ""
    if reason := answer.get("hosts_unreadable"):
        says += f": the login user may not read /etc/hosts there ({reason})"
        fix = remedy_from_page("name-unresolvable", "unreadable")
    elif lookup["in_hosts"]:
        evidence += [f"{node.name}: /etc/hosts:{number}: {text}" for number, text in lookup["in_hosts"]]
        asked = sources.split()[1:]
        before = asked[: asked.index("files")] if "files" in asked else asked
        if sources and "files" not in asked:
            says += f": it is in /etc/hosts, and /etc/nsswitch.conf (`{sources}`) does not look there"
            fix = remedy_from_page("name-unresolvable", "not-looked-up")
        elif before and (late or any("return" in one.lower() for one in before)):  # `resolve [!UNAVAIL=return] files`
            says += f"; it is in /etc/hosts, and /etc/nsswitch.conf (`{sources}`) has others asked before that"
            fix = remedy_from_page("name-unresolvable", "not-looked-up")
    else:
        instead = "a name in DNS, or the IP address in the inventory, mends it as well"
        evidence.append(f"{name} is not in /etc/hosts of {node.name}; {instead}")
    return Finding("name-unresolvable", says, fix, tuple(evidence), peers)


def own_name_finding(seen: Observations, node: Node, *, interface_helps: bool = True) -> Finding | None:
    """The finding for a node whose own host name means a wrong address there, or None. Without an interface to use,
    gloo tells its peers the address that this name means.

    The inventory can set an interface for torch's gloo, but not for JAX's.
    """
    answer = seen.answers[node.name]
    if answer["own"] is None:
        return None
    own: list[str] = answer["own"]["addresses"] or []
    hostname = answer["hostname"]
    truth = seen.own[node.name]
    bound = gloo_announced_address(seen, node)
    if truth and is_loopback(bound):
        means = ", ".join(own)
        if not own:
            cause, what = "name-unresolvable", f"cannot resolve its own host name {hostname}, and gloo then"
        elif all(is_loopback(address) for address in own):
            cause, what = "name-resolves-to-loopback", f"resolves its own host name {hostname} to {means}, and gloo"
        else:
            cause = "name-wrong-address"
            what = f"resolves its own host name {hostname} to {means}, none of its addresses, and gloo then"
        right = seen.numeric(node.name) if seen.numeric(node.name) in truth else truth[0]
        fix = _name_remedy(node, hostname, right, answer["own"]["in_hosts"])
        if twin := _node_with_same_hostname(seen, node, own):
            what = f"has the host name of {twin}, {hostname}, which means {means}, as a clone of it has, and gloo then"
            fix = remedy_from_page("name-wrong-address", "host-name", node=node.name, fresh=shell_word(node.name))
        return Finding(
            cause,
            f"{node.name} {what} tells its peers to dial {bound}",
            fix,
            (
                f"getaddrinfo({hostname}) on {node.name}: {means or 'nothing'}",
                "an interface in the inventory (`network: {interface: …}`) makes the name unimportant"
                if interface_helps
                else "JAX's gloo knows no other way to its address: an interface in the inventory does not help",
            ),
        )
    return _mixed_ip_version_finding(seen, node, own, interface_helps=interface_helps)


def _node_with_same_hostname(seen: Observations, node: Node, means: Sequence[str]) -> str:
    """Another node that has this node's host name, and to which the name leads; "" when there is none."""
    at, hostname = seen.at, seen.answers[node.name]["hostname"]
    others = (name for address in means for name in seen.owners.get(address, ()))
    apart = (name for name in others if name in seen.answers and at.machine(name) != at.machine(node.name))
    return next((name for name in apart if seen.answers[name]["hostname"] == hostname), "")


def _mixed_ip_version_finding(
    seen: Observations, node: Node, own: list[str], *, interface_helps: bool
) -> Finding | None:
    """The finding when this node resolves its own host name to one IP version and most others theirs to the other, or
    None."""
    hostname = seen.answers[node.name]["hostname"]
    first = {
        name: said["own"]["addresses"][0]
        for name, said in seen.answers.items()
        if said["own"] and said["own"]["addresses"] and not is_loopback(said["own"]["addresses"][0])
    }
    if node.name not in first:
        return None
    unlike = [name for name, address in first.items() if ip_version(address) != ip_version(first[node.name])]
    if not unlike or 2 * len(unlike) < len(first) or (2 * len(unlike) == len(first) and ip_version(own[0]) == 4):
        return None
    mine, its = ("IPv6", "IPv4") if ip_version(own[0]) == 6 else ("IPv4", "IPv6")
    return finding_for(
        "ipv6-ipv4-mixing",
        f"{node.name} resolves its own host name {hostname} to {own[0]} ({mine}), while {name_list_text(unlike)} "
        f"announce{'s' if len(unlike) == 1 else ''} {its}: gloo cannot connect the two",
        tuple(f"getaddrinfo of its own host name on {name}: {address}" for name, address in first.items()),
        tuple(unlike),
        way="interface" if interface_helps else "host-names",
    )


def gloo_announced_address(seen: Observations, node: Node) -> str:
    """The address that gloo tells its peers: the first address of the node's own host name that gloo can bind. Without
    one, gloo warns and takes loopback."""
    own = seen.answers[node.name]["own"]
    truth = seen.own[node.name]
    return next((one for one in (own and own["addresses"]) or () if is_loopback(one) or one in truth), "127.0.0.1")


def _name_remedy(node: Node, name: str, right: str, lines: Sequence[Sequence[Any]]) -> str:
    """The remedy that makes a name mean the address `right` on a node. The /etc/hosts of a container or pod is a mount,
    which `sed -i` cannot replace and which the next start writes anew."""
    if not node.entry and node.connection != "kubernetes":
        return hosts_file_command(name, right, lines)
    way = "add-host" if node.entry else "host-aliases"
    return remedy_from_page("name-wrong-address", way, node=node.name, name=name, right=right)


def hosts_file_command(name: str, right: str, lines: Sequence[Sequence[Any]]) -> str:
    """The command that makes a name mean an address: it removes the name from other lines of /etc/hosts and adds a
    line."""
    append = f"echo {shell_word(f'{right} {name}')} | sudo tee -a /etc/hosts"
    if not lines:
        return Remedy.run(append)
    quoted = re.sub(r"([^\w-])", r"\\\1", name)
    where = "; ".join(rf"{number}s/[[:space:]]{quoted}([[:space:]#]|$)/\1/gI" for number, _ in lines)
    return Remedy.run(f"sudo sed -i -E {shell_word(where)} /etc/hosts && {append}")


def _name_servers_text(seen: Observations, node: Node) -> str:
    """The name servers of the node, in words."""
    servers = seen.answers[node.name]["nameservers"]
    return ", ".join(f"nameserver {server}" for server in servers) or "no nameserver"
