"""An inventory as if it said `shell: X` for every node: what `--shell` asks for."""

from __future__ import annotations

from dataclasses import replace

from runbook.load.inventory import default_backend
from runbook.load.origins import Origins
from runbook.model.inventory import Inventory


def with_shell(inventory: Inventory, origins: Origins, shell: str) -> Inventory:
    """The same nodes with this shell; defaults that hang on it (Python's name, the backend) follow."""
    python = "python3" if shell == "sh" else "python"
    nodes = tuple(
        replace(node, shell=shell, python=node.python if origins.span(node.name, "python") else python)
        for node in inventory.nodes
    )
    rendezvous = inventory.rendezvous
    if not backend_given(origins):
        rendezvous = replace(rendezvous, backend=default_backend(nodes))
    return replace(inventory, nodes=nodes, rendezvous=rendezvous)


def backend_given(origins: Origins) -> bool:
    """Whether the file itself names the backend."""
    data = origins.document.data
    given = data.get("rendezvous") if isinstance(data, dict) else None
    return isinstance(given, dict) and "backend" in given
