"""Who is which rank: the master's ranks first, then node by node, inside a node by device index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from runbook.model.inventory import Inventory, Node, Rendezvous


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the job. `device` is the GPU's index on its node, or None for a CPU rank."""

    rank: int
    node: str
    node_rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    device: int | None


def rank_table(inventory: Inventory) -> tuple[Rank, ...]:
    """Ranks of the inventory's nodes, which already stand in rank order."""
    table: list[Rank] = []
    for node_rank, node in enumerate(inventory.nodes):
        devices: Sequence[int | None] = sorted(node.gpus) or [None] * node.processes
        for local_rank, device in enumerate(devices):
            table.append(Rank(len(table), node.name, node_rank, local_rank, node.slots, inventory.world_size, device))
    return tuple(table)


def narrow(inventory: Inventory, nodes: Sequence[Node]) -> Inventory:
    """The same cluster with only these nodes. Without its master the first of them leads, at its own address."""
    kept = tuple(node for node in inventory.nodes if node in nodes)
    rendezvous = inventory.rendezvous
    if rendezvous.master not in {node.name for node in kept}:
        rendezvous = replace(rendezvous, master=kept[0].name, address=kept[0].address)
    names = {node.name for node in kept}
    groups = {group: tuple(name for name in members if name in names) for group, members in inventory.groups.items()}
    return replace(inventory, nodes=kept, rendezvous=rendezvous, groups=groups)


def dialled_address(rendezvous: Rendezvous, node_count: int) -> str:
    """MASTER_ADDR: one node dials itself over loopback, several dial the rendezvous address."""
    return "127.0.0.1" if node_count == 1 else rendezvous.address
