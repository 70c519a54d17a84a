"""Inventories for the tests of this room, and the environments of their ranks."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from runbook.files.inventory import load_inventory
from runbook.launch.ranks import node_environment, rank_environment, rank_layout
from runbook.model.inventory import EnvValue, Inventory, Node, Rendezvous


def node(name: str, address: str = "10.0.0.1", **options: Any) -> Node:
    return Node(name, address, **options)


def cluster(*nodes: Node, port: int = 29500, backend: str = "gloo", **options: Any) -> Inventory:
    return Inventory("lab", nodes, Rendezvous(nodes[0].name, nodes[0].address, port, backend), **options)


def loaded(folder: Path, text: str) -> Inventory:
    file = folder / "inventory.yml"
    file.write_text(dedent(text))
    return load_inventory(file, environ={})[0]


def environments(inventory: Inventory) -> list[dict[str, EnvValue]]:
    """Of every rank, in rank order."""
    by_node = rank_layout(inventory)
    return [
        {**node_environment(by_node, node_ranks), **rank_environment(rank)}
        for node_ranks in by_node.by_node.values()
        for rank in node_ranks.ranks
    ]
