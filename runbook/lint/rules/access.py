"""Rules about how nodes are reached: an address of its own for each node, jump hosts, waits, logins and pods."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from runbook.files.address import is_loopback, normal_spelling
from runbook.files.schema import load_schema
from runbook.lint.rule_inputs import (
    InventoryFile,
    are_all_trusted,
    has_or_have,
    is_soundly_given,
    named_nodes,
    node_span,
    nodes_by_place,
    trusted_nodes,
    winning_level,
)
from runbook.model.errors import Problem
from runbook.model.inventory import Node, Ssh

_MAYBE_LOOPBACK = re.compile(r"127\.|.*:|.*local", re.IGNORECASE)
_IPV4 = re.compile(r"\A([0-9]+\.[0-9]+\.[0-9]+)\.([0-9]+)")
_LEADING_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")


def loopback_address(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes at a loopback address in a job of several nodes. A rendezvous at loopback is refused by the
    loader."""
    elsewhere = any(node.connection != "local" for node in trusted_nodes(file, "connection"))
    if len(file.inventory.nodes) == 1 or not elsewhere:
        return
    wrong = [
        node
        for node in trusted_nodes(file, "address")
        if _MAYBE_LOOPBACK.match(node.address) and is_loopback(node.address)
    ]
    for span, nodes in nodes_by_place(file, wrong, "address"):
        message = f"the other nodes would reach themselves at {nodes[0].address}, and not {named_nodes(nodes)}"
        help = "give the address on the network that the nodes share"
        yield Problem("inventory.loopback-address", message, span, help)


def local_twins(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes on this machine with the same address: such nodes differ only in their addresses."""
    first: dict[str, Node] = {}
    twins: list[Node] = []
    for node in trusted_nodes(file, "address", "connection"):
        if node.connection == "local" and first.setdefault(node.address, node) is not node:
            twins.append(node)
    for span, nodes in nodes_by_place(file, twins, "address"):
        message = f"{named_nodes([first[nodes[0].address], *nodes])} are this machine, all at {nodes[0].address}"
        help = "make them one node with more GPUs or processes"
        if file.inventory.one_machine:
            help = "give each its own loopback address: 127.0.0.1, 127.0.0.2, …"
        yield Problem("inventory.local-twins", message, span, help)


def same_login(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes with different addresses and one login. Equal addresses behind one login are refused by the loader;
    containers of a machine are nodes of their own."""
    first: dict[tuple[object, ...], Node] = {}
    twins: dict[str, Node] = {}
    for node in trusted_nodes(file, "address", "ssh", "connection"):
        ssh = node.ssh
        if node.connection != "ssh" or ssh.host is None:
            continue
        login = (normal_spelling(ssh.host), ssh.usual_port, ssh.jump, ssh.user)
        one = first.setdefault((*login, node.container, node.inside), node)
        if normal_spelling(one.address) != normal_spelling(node.address):
            twins[node.name] = one
    nodes = [node for node in file.inventory.nodes if node.name in twins]
    for span, others in nodes_by_place(file, nodes, "ssh", "host"):
        message = f"{named_nodes([twins[others[0].name], *others])} log in to one machine, {others[0].ssh.host}"
        yield Problem("inventory.same-login", message, span, "give each node the host of its own in `ssh: {host: …}`")


def address_of_another(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes whose address or ssh host is another node's name or address."""
    nodes = trusted_nodes(file, "address", "ssh")
    owners: dict[str, Node] = {node.name.lower(): node for node in nodes}
    for node in nodes:
        owners.setdefault(normal_spelling(node.address), node)
    for what, key in (("address", ("address",)), ("ssh host", ("ssh", "host"))):
        theirs = {node.name: owner for node in nodes if (owner := _other_owner(owners, node, key)) is not None}
        for span, some in nodes_by_place(file, [node for node in nodes if node.name in theirs], *key):
            owner = theirs[some[0].name]
            value = _address_or_host(some[0], key)
            whose = "which is another node" if owner.name == value else f"and that is `{owner.name}`"
            message = f"the {what} of {named_nodes(some)} is {value}, {whose}"
            yield Problem(
                "inventory.address-of-another", message, span, f"give {named_nodes(some)} {_possessive_for(some)} own"
            )


def _other_owner(owners: Mapping[str, Node], node: Node, key: tuple[str, ...]) -> Node | None:
    """The other node that this address or ssh host belongs to, None if there is none. Logins at different ports of one
    host may lead into different containers, and are not compared."""
    value = _address_or_host(node, key)
    owner = owners.get(normal_spelling(value)) if value is not None else None
    if owner is None or owner is node or normal_spelling(owner.address) == normal_spelling(node.address):
        return None
    return None if key[0] == "ssh" and owner.ssh.usual_port != node.ssh.usual_port else owner


def _address_or_host(node: Node, key: tuple[str, ...]) -> str | None:
    return node.ssh.host if key[0] == "ssh" else node.address


def _possessive_for(nodes: Sequence[Node]) -> str:
    return "its" if len(nodes) == 1 else "each their"


def network_address(file: InventoryFile) -> Iterator[Problem]:
    """Reports addresses in .0 and .255 where all nodes share the first three numbers, so that their network is most
    likely a /24. In a wider network such an address may be a host's."""
    found: list[tuple[Node, str]] = []
    networks: set[str] = set()
    for node in trusted_nodes(file, "address"):
        if match := _IPV4.fullmatch(node.address):
            networks.add(match[1])
            if match[2] in ("0", "255"):
                found.append((node, match[2]))
    if len(networks) != 1 or len(file.inventory.nodes) < 2 or not are_all_trusted(file, "address"):
        return
    for node, last in found:
        kind = "the network itself" if last == "0" else "everybody in the network (broadcast)"
        (network,) = networks
        message = f"`{node.name}` has {node.address}, which in {network}.0/24 means {kind}"
        span = file.origins.span(node.name, "address") or node_span(file, node)
        yield Problem("inventory.network-address", message, span, "hosts have the numbers from 1 to 254")


def mixed_families(file: InventoryFile) -> Iterator[Problem]:
    """Reports IPv4 and IPv6 literals in one job; host names may stand for either, and are not judged."""
    nodes = trusted_nodes(file, "address")
    six = [node for node in nodes if ":" in node.address and not is_loopback(node.address)]
    if not six or len(six) == len(nodes):
        return
    four = [node for node in nodes if _IPV4.fullmatch(node.address)]
    fewer, more, kind, other = (six, four, "IPv6", "IPv4") if len(six) <= len(four) else (four, six, "IPv4", "IPv6")
    if fewer and more:
        span = file.origins.span(fewer[0].name, "address") or node_span(file, fewer[0])
        message = (
            f"{named_nodes(fewer)} {has_or_have(fewer)} an {kind} address and "
            f"{named_nodes(more)} {has_or_have(more)} an {other} one"
        )
        help = "a job's ranks speak one of the two: give all nodes addresses of one kind"
        yield Problem("inventory.mixed-families", message, span, help)


def link_local_address(file: InventoryFile) -> Iterator[Problem]:
    wrong = [
        node for node in trusted_nodes(file, "address") if node.address[:4].lower() == "fe80" and ":" in node.address
    ]
    for span, nodes in nodes_by_place(file, [node for node in wrong if "%" not in node.address], "address"):
        message = f"{nodes[0].address} is link-local: without the interface it leads nowhere"
        help = "give a routable address, or the interface too, as in fe80::1%eth0"
        yield Problem("inventory.link-local-address", message, span, help)


def padding_differs(file: InventoryFile) -> Iterator[Problem]:
    """Reports a node `gn01` at the host name `gn1`: the result of ranges that are padded differently."""
    nodes = [node for node in trusted_nodes(file, "address") if node.address != node.name and _is_repadded(node)]
    for span, some in nodes_by_place(file, nodes, "address"):
        node = some[0]
        message = f"`{node.name}` has the address {node.address}, whose number is padded differently"
        yield Problem("inventory.padding-differs", message, span, "host names are compared letter by letter: check it")


def _is_repadded(node: Node) -> bool:
    label = node.address.partition(".")[0].lower()
    name = node.name.partition(".")[0].lower()
    if label == name or label.isdigit() or ":" in label:
        return False
    return _LEADING_ZEROS.sub("", label) == _LEADING_ZEROS.sub("", name)


def name_case(file: InventoryFile) -> Iterator[Problem]:
    nodes = file.inventory.nodes
    first: dict[str, Node] = {}
    for node in nodes:
        one = first.setdefault(node.name.lower(), node)
        if one is not node:
            message = f"`{one.name}` and `{node.name}` differ only in case, and host names do not know case"
            yield Problem("inventory.name-case", message, node_span(file, node), "rename one of the two")


def key_as_node(file: InventoryFile) -> Iterator[Problem]:
    for node in file.inventory.nodes:
        if node.name in load_schema("inventory")["properties"] and not is_soundly_given(
            file, "nodes", node.name, "address"
        ):
            message = f"`{node.name}:` is taken for a node here: the inventory's own belongs at the left margin"
            help = "take its indentation away; if it is a machine, give it an `address`"
            yield Problem("inventory.key-as-node", message, node_span(file, node), help)


# Logging in: jump hosts, waits, and logins that are not used.

_DEFAULT_SSH = Ssh()
_NON_SSH_CONNECTIONS = ("local", "agent", "slurm", "kubernetes")
_MAX_CONNECT_TIMEOUT_S = 600.0


def jump_to_self(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes that are their own jump host, most often because a default for all nodes reaches the jump host."""
    looping = [
        node for node in trusted_nodes(file, "ssh", "address", "connection") if node.ssh.jump and _jumps_to_self(node)
    ]
    for span, nodes in nodes_by_place(file, looping, "ssh", "jump"):
        message = f"{named_nodes(nodes)} would be reached through {'itself' if len(nodes) == 1 else 'themselves'}"
        help = "set `jump` in a group of the other nodes, and not for this one"
        yield Problem("inventory.jump-to-self", message, span, help)


def _jumps_to_self(node: Node) -> bool:
    if node.connection != "ssh":
        return False
    own = {normal_spelling(node.ssh.host or node.address), node.name.lower()}
    hops = [hop.rpartition("@")[2] for hop in (node.ssh.jump or "").split(",")]
    ports = {str(node.ssh.usual_port), ""}
    return any(normal_spelling(host) in own and port in ports for host, port in map(_host_and_port, hops))


def _host_and_port(hop: str) -> tuple[str, str]:
    if hop.count(":") > 1 and not hop.startswith("["):
        return hop, ""
    host, _, port = hop.rpartition(":") if re.search(r":[0-9]+$", hop) else (hop, "", "")
    return host.strip("[]"), port


def unused_ssh(file: InventoryFile) -> Iterator[Problem]:
    """Reports login settings of a node's own if its connection has no login; settings in `defaults` are for other
    nodes."""
    others = [
        node
        for node in trusted_nodes(file, "ssh", "connection")
        if node.connection in _NON_SSH_CONNECTIONS and node.ssh != _DEFAULT_SSH
    ]
    for node in others:
        keys = [key for key in file.origins.keys(node.name) if key[0] == "ssh"]
        own = [key for key in keys if winning_level(file, node, *map(str, key)) == "node"]
        if own:
            message = f"`{node.name}` is `connection: {node.connection}`: there is no login, and `ssh` is not read"
            entry = file.origins.entry(node.name)
            yield Problem(
                "inventory.unused-ssh", message, file.document.key_span(*entry, "ssh"), "remove one of the two"
            )


def connect_timeout(file: InventoryFile) -> Iterator[Problem]:
    odd = [
        node for node in trusted_nodes(file, "ssh") if not 0.2 <= node.ssh.connect_timeout_s <= _MAX_CONNECT_TIMEOUT_S
    ]
    for span, nodes in nodes_by_place(file, odd, "ssh", "connect_timeout"):
        seconds = nodes[0].ssh.connect_timeout_s
        size = "long" if seconds > 1 else "short"
        message = f"{seconds:g} seconds is very {size} for opening a connection"
        yield Problem("inventory.connect-timeout", message, span, "a plain number is seconds: write for example 10s")


# Pods: their names when none is given, and the addresses at which the others dial them.


def unused_kubernetes(file: InventoryFile) -> Iterator[Problem]:
    """Reports `kubernetes` settings of a node with another connection: most often `connection: kubernetes` was
    forgotten. Settings in `defaults` may be for other nodes, if there are pods among them."""
    nodes = trusted_nodes(file, "kubernetes", "connection")
    pods = any(node.connection == "kubernetes" for node in nodes)
    for node in nodes:
        keys = [key for key in file.origins.keys(node.name) if key[0] == "kubernetes"]
        own = [key for key in keys if not pods or winning_level(file, node, *map(str, key)) == "node"]
        if node.connection != "kubernetes" and own:
            message = f"`{node.name}` is `connection: {node.connection}`, and `kubernetes` is not read"
            span = file.origins.span(node.name, *map(str, own[0]))
            yield Problem("inventory.unused-kubernetes", message, span, "write `connection: kubernetes`, or remove it")


def pod_without_address(file: InventoryFile) -> Iterator[Problem]:
    """Reports pods without an address. A name with a dot may be that of a headless service, which is a pod's
    address."""
    if len(file.inventory.nodes) < 2:
        return
    nodes = trusted_nodes(file, "address", "connection")
    bare = [n for n in nodes if n.connection == "kubernetes" and n.address == n.name and "." not in n.name]
    if bare:
        message = f"{named_nodes(bare)} {has_or_have(bare)} no `address`, and the name of a pod alone does not resolve"
        help = "give the pod's address (`kubectl get pods -o wide`), or let -i kubernetes:SELECTOR make the inventory"
        yield Problem("inventory.pod-without-address", message, node_span(file, bare[0]), help)


INVENTORY_RULES = (
    connect_timeout,
    jump_to_self,
    unused_ssh,
    unused_kubernetes,
    pod_without_address,
    address_of_another,
    link_local_address,
    local_twins,
    loopback_address,
    mixed_families,
    name_case,
    key_as_node,
    network_address,
    padding_differs,
    same_login,
)
