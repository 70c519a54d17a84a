"""Pods: how they are named where nobody asks for one, and where the others are to dial them."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.lint.rules.written import level, named, node_span, trusted
from runbook.lint.subject import InventoryFile
from runbook.model.errors import Problem


def unused_kubernetes(file: InventoryFile) -> Iterator[Problem]:
    """Most often `connection: kubernetes` was forgotten. Defaults may be for other nodes, which have it."""
    nodes = trusted(file, "kubernetes", "connection")
    pods = any(node.connection == "kubernetes" for node in nodes)
    for node in nodes:
        keys = [key for key in file.origins.keys(node.name) if key[0] == "kubernetes"]
        own = [key for key in keys if not pods or level(file, node, *map(str, key)) == "node"]
        if node.connection != "kubernetes" and own:
            message = f"`{node.name}` is `connection: {node.connection}`, and `kubernetes` is not read"
            span = file.origins.span(node.name, *map(str, own[0]))
            yield Problem("inventory.unused-kubernetes", message, span, "write `connection: kubernetes`, or remove it")


def pod_without_address(file: InventoryFile) -> Iterator[Problem]:
    """A name with a dot may be that of a headless service, which is a pod's address."""
    if len(file.inventory.nodes) < 2:
        return
    nodes = trusted(file, "address", "connection")
    bare = [n for n in nodes if n.connection == "kubernetes" and n.address == n.name and "." not in n.name]
    if bare:
        message = f"{named(bare)} {'has' if len(bare) == 1 else 'have'} no `address`, and the name of a pod alone does not resolve"
        help = "give the pod's address (`kubectl get pods -o wide`), or let -i kubernetes:SELECTOR make the inventory"
        yield Problem("inventory.pod-without-address", message, node_span(file, bare[0]), help)
