"""Ports: that nothing else is likely to hold the one where the ranks meet."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from runbook.lint.rules.written import all_trusted, said, trusted, wrote
from runbook.lint.subject import InventoryFile
from runbook.load.document import Keys
from runbook.model.errors import Problem, Span

_EPHEMERAL = {"Linux": (32768, 60999), "Windows": (49152, 65535)}  # what the kernel gives to outgoing connections
_PORT = ("rendezvous", "port")
_PORTS = ("network", "ports")
_PRIVILEGED = 1023

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
    """sshd listens there already, on every address."""
    master = _master(file)
    port = file.inventory.rendezvous.port
    if not master or not wrote(file, *_PORT) or not all_trusted(file, "ssh", "connection"):
        return
    if port == (file.inventory.nodes[0].ssh.port or 22) and file.inventory.nodes[0].connection == "ssh":
        message = f"port {port} is where sshd of the master `{master}` listens: rank 0 cannot"
        yield Problem("inventory.port-is-ssh", message, file.document.span(*_PORT), "take another, for example 29500")


def privileged_port(file: InventoryFile) -> Iterator[Problem]:
    port = file.inventory.rendezvous.port
    if not wrote(file, *_PORT) or port > _PRIVILEGED or any(True for _ in port_is_ssh(file)):
        return
    if file.inventory.nodes[0].windows:
        return
    message = f"only root may listen on ports below 1024, and the rendezvous port is {port}"
    yield Problem("inventory.privileged-port", message, file.document.span(*_PORT), "take another, for example 29500")


def service_port(file: InventoryFile) -> Iterator[Problem]:
    port = file.inventory.rendezvous.port
    if wrote(file, *_PORT) and port in _SERVICES:
        message = f"port {port} is the usual one of {_SERVICES[port]}"
        help = "if that runs on the master, rank 0 cannot listen: take another, for example 29500"
        yield Problem("inventory.service-port", message, file.document.span(*_PORT), help)


def ephemeral_port(file: InventoryFile) -> Iterator[Problem]:
    """Data ports may lie there: the job takes what is free. The rendezvous has to have this one."""
    if not wrote(file, *_PORT) or not _master(file) or not trusted(file, "shell"):
        return
    system = "Windows" if file.inventory.nodes[0].windows else "Linux"
    low, high = _EPHEMERAL[system]
    port = file.inventory.rendezvous.port
    if low <= port <= high:
        message = f"{system} gives ports from {low} to {high} to any outgoing connection, and the rendezvous is {port}"
        help = "one day it is taken: choose a port below, for example 29500"
        yield Problem("inventory.ephemeral-port", message, file.document.span(*_PORT), help)


def port_not_open(file: InventoryFile) -> Iterator[Problem]:
    inventory = file.inventory
    port = inventory.rendezvous.port
    ranges = inventory.network.ports
    if not ranges or len(inventory.nodes) == 1 or not said(file, *_PORT) or not said(file, *_PORTS):
        return
    if not any(low <= port <= high for low, high in ranges):
        message = f"the rendezvous port {port} is not among the ports that are open between the nodes"
        span = file.document.span(*(_PORT if wrote(file, *_PORT) else _PORTS))
        yield Problem("inventory.port-not-open", message, span, f"add {port} to `network: {{ports: …}}`")


def ports_twice(file: InventoryFile) -> Iterator[Problem]:
    """Which one was meant is not known; often it should have been the next range."""
    if not said(file, *_PORTS):
        return
    ranges = file.inventory.network.ports
    furthest: int | None = None  # of the ranges so far, from low to high, the one that reaches furthest
    for place in sorted(range(len(ranges)), key=lambda place: (ranges[place], place)):
        if furthest is not None and ranges[place][0] <= ranges[furthest][1]:
            first, second = sorted((furthest, place))
            message = f"the ports {_range(*ranges[second])} and {_range(*ranges[first])} overlap"
            yield Problem("inventory.ports-twice", message, _port_span(file, second), "write each port once")
        if furthest is None or ranges[place][1] > ranges[furthest][1]:
            furthest = place


def ports_with_ssh(file: InventoryFile) -> Iterator[Problem]:
    """The port stage looks whether they are free to bind, and sshd's never is."""
    ranges = file.inventory.network.ports
    if not ranges or not said(file, *_PORTS):
        return
    nodes = trusted(file, "ssh", "connection")
    taken = sorted({node.ssh.port or 22 for node in nodes if node.connection == "ssh"})
    for place, (low, high) in enumerate(ranges):
        at = bisect_left(taken, low)
        if at < len(taken) and taken[at] <= high:
            message = f"the job cannot have port {taken[at]}: sshd listens there"
            help = "name only ports of the job's own, for example 29500-29510"
            yield Problem("inventory.ports-with-ssh", message, _port_span(file, place), help)


def _master(file: InventoryFile) -> str | None:
    """The master's name, if the file leaves no doubt which node it is."""
    return file.inventory.nodes[0].name if said(file, "rendezvous", "master") else None


def _port_span(file: InventoryFile, place: int) -> Span | None:
    """Of the n-th range: items of a list may hold several, and then the whole list is the place."""
    item: Keys = (*_PORTS, place)
    ranges = file.inventory.network.ports
    listed = (*_PORTS, len(ranges) - 1) in file.document.spans and (*_PORTS, len(ranges)) not in file.document.spans
    return file.document.span(*(item if listed else _PORTS))


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"
