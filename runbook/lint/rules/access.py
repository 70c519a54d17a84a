"""Getting in: jump hosts, waits, and logins that nobody uses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.lint.rules.written import level, named, places, trusted
from runbook.lint.subject import InventoryFile
from runbook.model.errors import Problem
from runbook.model.inventory import Node, Ssh

_PLAIN = Ssh()
_NO_LOGIN = ("local", "agent", "slurm", "kubernetes")
_LONGEST_WAIT_S = 600.0


def jump_to_self(file: InventoryFile) -> Iterator[Problem]:
    """Most often a default for all nodes that reaches the jump host too."""
    looping = [node for node in trusted(file, "ssh", "address", "connection") if node.ssh.jump and _jumps_to_self(node)]
    for span, nodes in places(file, looping, "ssh", "jump"):
        message = f"{named(nodes)} would be reached through {'itself' if len(nodes) == 1 else 'themselves'}"
        help = "set `jump` in a group of the other nodes, and not for this one"
        yield Problem("inventory.jump-to-self", message, span, help)


def _jumps_to_self(node: Node) -> bool:
    if node.connection != "ssh":
        return False
    own = {(node.ssh.host or node.address).lower(), node.name.lower()}
    hops = [hop.rpartition("@")[2] for hop in (node.ssh.jump or "").split(",")]
    ports = {str(node.ssh.port or 22), ""}
    return any(host.lower() in own and port in ports for host, port in map(_host_and_port, hops))


def _host_and_port(hop: str) -> tuple[str, str]:
    if hop.count(":") > 1 and not hop.startswith("["):
        return hop, ""
    host, _, port = hop.rpartition(":") if re.search(r":[0-9]+$", hop) else (hop, "", "")
    return host.strip("[]"), port


def unused_ssh(file: InventoryFile) -> Iterator[Problem]:
    """Defaults are for the other nodes; what a node says itself that nobody logs in to is for nobody."""
    others = [
        node for node in trusted(file, "ssh", "connection") if node.connection in _NO_LOGIN and node.ssh != _PLAIN
    ]
    for node in others:
        keys = [key for key in file.origins.keys(node.name) if key[0] == "ssh"]
        own = [key for key in keys if level(file, node, *map(str, key)) == "node"]
        if own:
            message = f"`{node.name}` is `connection: {node.connection}`: nobody logs in, and `ssh` is not read"
            entry = file.origins.entry(node.name)
            yield Problem(
                "inventory.unused-ssh", message, file.document.key_span(*entry, "ssh"), "remove one of the two"
            )


def connect_timeout(file: InventoryFile) -> Iterator[Problem]:
    odd = [node for node in trusted(file, "ssh") if not 0.2 <= node.ssh.connect_timeout_s <= _LONGEST_WAIT_S]
    for span, nodes in places(file, odd, "ssh", "connect_timeout"):
        seconds = nodes[0].ssh.connect_timeout_s
        size = "long" if seconds > 1 else "short"
        message = f"{seconds:g} seconds is very {size} for opening a connection"
        yield Problem("inventory.connect-timeout", message, span, "a plain number is seconds: write for example 10s")
