"""Rules about interfaces, InfiniBand, ports, the rendezvous, and host names on Windows."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from ipaddress import ip_network

from runbook.files.address import is_ip, is_loopback, normal_spelling
from runbook.files.yaml_document import KeyPath
from runbook.firewall.evaluate import DEFAULT_EPHEMERAL_PORTS
from runbook.lint.rule_inputs import (
    NETWORK_INTERFACE_KEY,
    InventoryFile,
    are_all_trusted,
    is_soundly_given,
    is_value_meant,
    named_nodes,
    node_span,
    nodes_by_place,
    trusted_nodes,
)
from runbook.model.errors import Problem, Span
from runbook.model.inventory import Node
from runbook.model.units import range_text

_RATE_KEY = ("infiniband", "min_rate_gbps")

_MAX_INTERFACE_CHARACTERS = 15  # IFNAMSIZ, less the NUL
_PORT_RATES_GBPS = (
    *(2.5, 5, 10, 14, 20, 25, 28, 30, 40, 50, 56, 60, 80),
    *(100, 112, 120, 168, 200, 300, 400, 600, 800, 1200, 1600),
)  # Gbit/s that a port of InfiniBand or RoCE can have, lanes times lane rate


def interface_name(file: InventoryFile) -> Iterator[Problem]:
    """Reports a name that is too long for an interface of Linux; adapters of Windows may have any name."""
    if not is_soundly_given(file, *NETWORK_INTERFACE_KEY) or any(node.windows for node in trusted_nodes(file, "shell")):
        return
    for name in (file.inventory.network.interface or "").lstrip("^=").split(","):
        if len(name.partition(":")[0]) > _MAX_INTERFACE_CHARACTERS and not is_ip(name.partition("/")[0]):
            message = f"no interface is called `{name}`: names have up to {_MAX_INTERFACE_CHARACTERS} characters"
            help = "`ip -br link` lists them, one a line"
            yield Problem("inventory.interface-name", message, file.document.span(*NETWORK_INTERFACE_KEY), help)
            return


def infiniband_unused(file: InventoryFile) -> Iterator[Problem]:
    """Reports `infiniband:` if the backend is certainly gloo: it is written, or follows from Windows nodes."""
    inventory = file.inventory
    if inventory.infiniband is None or inventory.rendezvous.backend != "gloo":
        return
    if is_soundly_given(file, "rendezvous", "backend"):
        why = "`backend: gloo`"
    elif is_value_meant(file, "rendezvous", "backend") and any(node.windows for node in trusted_nodes(file, "shell")):
        why = "gloo, the backend of Windows nodes,"
    else:
        return
    message = f"{why} does not use InfiniBand: the job's data goes over TCP"
    help = "write `backend: nccl`; or remove the block, if the fabric need not be looked at either"
    yield Problem("inventory.infiniband-unused", message, file.document.key_span("infiniband"), help)


def infiniband_rate(file: InventoryFile) -> Iterator[Problem]:
    infiniband = file.inventory.infiniband
    if infiniband is None or not is_soundly_given(file, *_RATE_KEY) or infiniband.min_rate_gbps is None:
        return
    rate = infiniband.min_rate_gbps
    if rate not in _PORT_RATES_GBPS:
        near = min(_PORT_RATES_GBPS, key=lambda real: abs(real - rate))
        message = f"no port runs at {rate:.10g} Gbit/s"
        help = f"the nearest rate there is: {near:g}. `ibstat` shows it as Rate, in Gbit/s"
        yield Problem("inventory.infiniband-rate", message, file.document.span(*_RATE_KEY), help)


# Ports: whether another program may hold the port at which the ranks meet.

_EPHEMERAL_PORTS = {
    "Linux": DEFAULT_EPHEMERAL_PORTS,
    "Windows": (49152, 65535),
}  # the ports that kernels give to outgoing connections
_PORT_KEY = ("rendezvous", "port")
_PORTS_KEY = ("network", "ports")
_MAX_PRIVILEGED_PORT = 1023

_SERVICES = {
    1433: "SQL Server",
    2049: "NFS",
    2379: "etcd",
    3000: "Grafana",
    3306: "MySQL",
    3389: "Remote Desktop",
    5000: "MLflow and container registries",
    5432: "PostgreSQL",
    5900: "VNC",
    5985: "WinRM",
    6006: "TensorBoard",
    6379: "Redis and Ray",
    6443: "Kubernetes",
    6817: "slurmctld",
    6818: "slurmd",
    6819: "slurmdbd",
    8080: "web servers",
    8265: "Ray's dashboard",
    8888: "Jupyter",
    9090: "Prometheus",
    9100: "node_exporter",
    9400: "dcgm-exporter",
    10250: "kubelet",
    11434: "Ollama",
    28028: "NCCL's own RAS service",
}


def port_is_ssh(file: InventoryFile) -> Iterator[Problem]:
    """Reports a rendezvous port at which the master's sshd listens already, on every address."""
    master = _certain_master(file)
    port = file.inventory.rendezvous.port
    if not master or not is_soundly_given(file, *_PORT_KEY) or not are_all_trusted(file, "ssh", "connection"):
        return
    if port == file.inventory.nodes[0].ssh.usual_port and file.inventory.nodes[0].connection == "ssh":
        message = f"port {port} is where sshd of the master `{master}` listens: rank 0 cannot"
        yield Problem(
            "inventory.port-is-ssh", message, file.document.span(*_PORT_KEY), "take another, for example 29500"
        )


def privileged_port(file: InventoryFile) -> Iterator[Problem]:
    port = file.inventory.rendezvous.port
    if not is_soundly_given(file, *_PORT_KEY) or port > _MAX_PRIVILEGED_PORT or any(True for _ in port_is_ssh(file)):
        return
    if file.inventory.nodes[0].windows:
        return
    message = f"only root may listen on ports below 1024, and the rendezvous port is {port}"
    yield Problem(
        "inventory.privileged-port", message, file.document.span(*_PORT_KEY), "take another, for example 29500"
    )


def service_port(file: InventoryFile) -> Iterator[Problem]:
    port = file.inventory.rendezvous.port
    if is_soundly_given(file, *_PORT_KEY) and port in _SERVICES:
        message = f"port {port} is the usual one of {_SERVICES[port]}"
        help = "if that runs on the master, rank 0 cannot listen: take another, for example 29500"
        yield Problem("inventory.service-port", message, file.document.span(*_PORT_KEY), help)


def ephemeral_port(file: InventoryFile) -> Iterator[Problem]:
    """Reports a rendezvous port that the kernel may give to an outgoing connection. Data ports may lie there, since the
    job takes free ones; the rendezvous needs exactly this port."""
    if not is_soundly_given(file, *_PORT_KEY) or not _certain_master(file) or not trusted_nodes(file, "shell"):
        return
    system = "Windows" if file.inventory.nodes[0].windows else "Linux"
    low, high = _EPHEMERAL_PORTS[system]
    port = file.inventory.rendezvous.port
    if low <= port <= high:
        message = f"{system} gives ports from {low} to {high} to any outgoing connection, and the rendezvous is {port}"
        help = "one day it is taken: choose a port below, for example 29500"
        yield Problem("inventory.ephemeral-port", message, file.document.span(*_PORT_KEY), help)


def port_not_open(file: InventoryFile) -> Iterator[Problem]:
    inventory = file.inventory
    port = inventory.rendezvous.port
    ranges = inventory.network.ports
    if (
        not ranges
        or len(inventory.nodes) == 1
        or not is_value_meant(file, *_PORT_KEY)
        or not is_value_meant(file, *_PORTS_KEY)
    ):
        return
    if not any(low <= port <= high for low, high in ranges):
        message = f"the rendezvous port {port} is not among the ports that are open between the nodes"
        span = file.document.span(*(_PORT_KEY if is_soundly_given(file, *_PORT_KEY) else _PORTS_KEY))
        yield Problem("inventory.port-not-open", message, span, f"add {port} to `network: {{ports: …}}`")


def ports_twice(file: InventoryFile) -> Iterator[Problem]:
    """Reports ranges of ports that overlap, at the later one: which of the two is wrong is not known."""
    if not is_value_meant(file, *_PORTS_KEY):
        return
    ranges = file.inventory.network.ports
    furthest: int | None = None  # the number of the range that reaches furthest so far
    for place in sorted(range(len(ranges)), key=lambda place: (ranges[place], place)):
        if furthest is not None and ranges[place][0] <= ranges[furthest][1]:
            first, second = sorted((furthest, place))
            message = f"the ports {range_text(*ranges[second])} and {range_text(*ranges[first])} overlap"
            yield Problem("inventory.ports-twice", message, _port_span(file, second), "write each port once")
        if furthest is None or ranges[place][1] > ranges[furthest][1]:
            furthest = place


def ports_with_ssh(file: InventoryFile) -> Iterator[Problem]:
    """Reports sshd's port among the job's ports: the `port` check looks whether each is free, and sshd's never is."""
    ranges = file.inventory.network.ports
    if not ranges or not is_value_meant(file, *_PORTS_KEY):
        return
    nodes = trusted_nodes(file, "ssh", "connection")
    taken = sorted({node.ssh.usual_port for node in nodes if node.connection == "ssh"})
    for place, (low, high) in enumerate(ranges):
        at = bisect_left(taken, low)
        if at < len(taken) and taken[at] <= high:
            message = f"the job cannot have port {taken[at]}: sshd listens there"
            help = "name only ports of the job's own, for example 29500-29510"
            yield Problem("inventory.ports-with-ssh", message, _port_span(file, place), help)


def _certain_master(file: InventoryFile) -> str | None:
    """The master's name, if the file leaves no doubt which node it is."""
    return file.inventory.nodes[0].name if is_value_meant(file, "rendezvous", "master") else None


def _port_span(file: InventoryFile, place: int) -> Span | None:
    """The place of the range with number `place` (from 0); the whole list if one of its items holds several ranges."""
    item: KeyPath = (*_PORTS_KEY, place)
    ranges = file.inventory.network.ports
    listed = (*_PORTS_KEY, len(ranges) - 1) in file.document.spans and (
        *_PORTS_KEY,
        len(ranges),
    ) not in file.document.spans
    return file.document.span(*(item if listed else _PORTS_KEY))


# The rendezvous: whether the address that the ranks dial is the master's.

_ADDRESS_KEY = ("rendezvous", "address")


def rendezvous_address(file: InventoryFile) -> Iterator[Problem]:
    """Reports a rendezvous address that is another node's. An address that no node has may be the master's second card
    or a name in DNS: it is reported only if it is very near to the nodes' own."""
    inventory = file.inventory
    if (
        len(inventory.nodes) == 1
        or not is_soundly_given(file, *_ADDRESS_KEY)
        or not is_value_meant(file, "rendezvous", "master")
    ):
        return
    nodes = trusted_nodes(file, "address", "ssh")
    master = inventory.nodes[0]
    given = inventory.rendezvous.address
    if master not in nodes[:1] or is_loopback(given):
        return
    owner = _address_owner(given, nodes)
    span = file.document.span(*_ADDRESS_KEY)
    if owner is None and (near := _typo_reason(given, nodes)) is not None:
        help = f"the master `{master.name}` has {master.address}; leave `address` out and that is dialled"
        yield Problem("inventory.rendezvous-nobody", f"no node has the address {given}, and {near}", span, help)
    elif owner is not None and owner is not master:
        message = f"{given} is `{owner.name}`, and rank 0 listens on the master, `{master.name}`"
        help = f"leave `address` out and {master.address} is dialled, or make `{owner.name}` the master"
        yield Problem("inventory.rendezvous-not-master", message, span, help)


def _address_owner(given: str, nodes: Sequence[Node]) -> Node | None:
    """The node whose address or name is `given`, None if there is none; in doubt the master, which is the first node. A
    name without its domain counts if it leads to one node only."""
    wanted = normal_spelling(given)
    for node in nodes:
        if wanted in (normal_spelling(node.address), node.name.lower(), normal_spelling(node.ssh.host or "")):
            return node
    if is_ip(given):
        return None
    label = wanted.partition(".")[0]
    alike = [node for node in nodes if label in (_host_label(node.address), _host_label(node.name))]
    return alike[0] if len(alike) == 1 or alike[:1] == list(nodes[:1]) else None


def _typo_reason(given: str, nodes: Sequence[Node]) -> str | None:
    """Why an address that no node has looks like a typing error; None if it does not."""
    if not is_ip(given):
        label = _host_label(given)
        other = next((node for node in nodes if _is_one_letter_off(label, _host_label(node.address))), None)
        other = other or next((node for node in nodes if _is_one_letter_off(label, node.name.lower())), None)
        return None if other is None else f"it is one letter away from `{other.name}`"
    if "%" in given:
        return None
    network = _likely_network(given)
    inside = [node for node in nodes if is_ip(node.address) and _likely_network(node.address) == network]
    return f"it is in the network of {named_nodes(inside)}" if inside else None


def _likely_network(address: str) -> str:
    """The network that an address most likely is in: the first three numbers of IPv4, the first half of IPv6."""
    if ":" not in address:
        return address.rpartition(".")[0]
    return "" if "%" in address else str(ip_network((address, 64), strict=False))


def _is_one_letter_off(one: str, other: str) -> bool:
    """Whether one letter replaced, left out or put in turns one into the other."""
    if len(one) > len(other):
        one, other = other, one
    if one == other or len(other) - len(one) > 1 or len(other) < 3:
        return False
    start = next((index for index, letter in enumerate(one) if letter != other[index]), len(one))
    return one[start + (len(one) == len(other)) :] == other[start + 1 :]


def _host_label(address: str) -> str:
    return "" if is_ip(address) else normal_spelling(address).partition(".")[0]


# Windows: names of its nodes and adapters, and nodes of other systems beside them.

_LINUX_INTERFACE = re.compile(r"(eth|ib|bond|wlan)[0-9]+|en[ospx][0-9a-z]+|lo")


def windows_name_dialled(file: InventoryFile) -> Iterator[Problem]:
    """Reports a single Windows machine that dials itself by name, which ended in error 10049 for many users."""
    inventory = file.inventory
    if (
        len(inventory.nodes) > 1
        or not is_soundly_given(file, "rendezvous", "address")
        or not trusted_nodes(file, "shell")
    ):
        return
    address = inventory.rendezvous.address
    if inventory.nodes[0].windows and not is_ip(address) and not is_loopback(address):
        message = f"one Windows machine that dials itself as {address} may get error 10049 or another machine"
        help = "remove `address`: a job of one node dials 127.0.0.1, whatever this says"
        yield Problem("inventory.windows-name-dialled", message, file.document.span("rendezvous", "address"), help)


def windows_host_name(file: InventoryFile) -> Iterator[Problem]:
    inventory = file.inventory
    if len(inventory.nodes) == 1:
        return
    windows = [node for node in trusted_nodes(file, "shell", "address") if node.windows]
    names = [node for node in windows if not is_ip(node.address) and not is_loopback(node.address)]
    help = "give the IP address: Windows may look a name up by broadcast, and find another adapter's or an IPv6 address"
    for span, nodes in nodes_by_place(file, names, "address"):
        message = f"the Windows node {named_nodes(nodes)} goes by a host name, {nodes[0].address}"
        if len(nodes) > 1:
            message = f"the Windows nodes {named_nodes(nodes)} go by host names"
        yield Problem("inventory.windows-host-name", message, span, help)
    address = inventory.rendezvous.address
    if windows and is_soundly_given(file, "rendezvous", "address") and not is_ip(address) and not is_loopback(address):
        message = f"Windows nodes dial the master by a host name, {address}"
        yield Problem("inventory.windows-host-name", message, file.document.span("rendezvous", "address"), help)


def two_systems(file: InventoryFile) -> Iterator[Problem]:
    """Reports Windows nodes beside others in one job, at the smaller group: the mistake is more likely there."""
    nodes = trusted_nodes(file, "shell")
    windows = [node for node in nodes if node.windows]
    others = [node for node in nodes if not node.windows]
    if not windows or not others:
        return
    odd = windows if len(windows) <= len(others) else others
    span = file.origins.span(odd[0].name, "shell") or node_span(file, odd[0])
    message = (
        f"{named_nodes(windows)} (Windows) and {named_nodes(others)} (not Windows) "
        "cannot be one job: no backend connects them"
    )
    help = "make two inventories; or correct `shell`: sh is for Linux, bat and ps1 are for Windows"
    yield Problem("inventory.two-systems", message, span, help)


def windows_interface(file: InventoryFile) -> Iterator[Problem]:
    name = file.inventory.network.interface
    if (
        name is None
        or not is_soundly_given(file, "network", "interface")
        or not is_value_meant(file, "network", "interface")
    ):
        return
    nodes = trusted_nodes(file, "shell")
    if nodes and all(node.windows for node in nodes) and _LINUX_INTERFACE.fullmatch(name):
        message = f"`{name}` is a name that Linux gives, and the nodes are Windows"
        help = "remove it, or give the adapter's name as `Get-NetAdapter` shows it"
        yield Problem("inventory.windows-interface", message, file.document.span("network", "interface"), help)


def windows_python3(file: InventoryFile) -> Iterator[Problem]:
    given = [
        node
        for node in trusted_nodes(file, "shell", "python")
        if node.windows and node.python in ("python3", "python3.exe")
    ]
    for span, nodes in nodes_by_place(file, given, "python"):
        message = f"on Windows ({named_nodes(nodes)}) `python3` often opens the Microsoft Store instead of a Python"
        yield Problem("inventory.windows-python3", message, span, "write python, py, or the path of python.exe")


INVENTORY_RULES = (
    infiniband_rate,
    infiniband_unused,
    interface_name,
    ephemeral_port,
    port_is_ssh,
    port_not_open,
    ports_twice,
    ports_with_ssh,
    privileged_port,
    service_port,
    rendezvous_address,
    two_systems,
    windows_host_name,
    windows_interface,
    windows_name_dialled,
    windows_python3,
)
