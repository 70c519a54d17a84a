"""Who is which rank: the master's ranks first, then node by node, inside a node by device index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """One node's place in the job, and the ranks that run there."""

    node: Node
    node_rank: int
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Every node's place by its name, in rank order: worked out once, because a place depends on all nodes before it."""

    inventory: Inventory
    world_size: int
    by_node: Mapping[str, NodeRanks]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Every rank of the job, in order."""
        return tuple(rank for node_ranks in self.by_node.values() for rank in node_ranks.ranks)

    @property
    def address(self) -> str:
        """What every rank dials."""
        return dialled_address(self.inventory.rendezvous, len(self.by_node))

    @property
    def meets_over_network(self) -> bool:
        """Whether ranks of several machines have to meet, so that a loopback address would be wrong."""
        return len(self.by_node) > 1 and not self.inventory.one_machine


def layout(inventory: Inventory) -> RankLayout:
    """Ranks for the inventory's nodes, which already stand in rank order."""
    world_size = inventory.world_size
    by_node: dict[str, NodeRanks] = {}
    first = 0
    for node_rank, node in enumerate(inventory.nodes):
        devices: Sequence[int | None] = sorted(node.gpus) or [None] * node.processes
        ranks = tuple(
            Rank(first + local_rank, node.name, node_rank, local_rank, node.slots, world_size, device)
            for local_rank, device in enumerate(devices)
        )
        by_node[node.name] = NodeRanks(node, node_rank, ranks)
        first += len(ranks)
    return RankLayout(inventory, world_size, by_node)


def rank_table(inventory: Inventory) -> tuple[Rank, ...]:
    """Every rank of the job, in order."""
    return layout(inventory).ranks


def narrow(inventory: Inventory, nodes: Sequence[Node]) -> Inventory:
    """The same cluster with only these nodes. Without its master the first of them leads, at its own address."""
    names = {node.name for node in nodes}
    kept = tuple(node for node in inventory.nodes if node.name in names)
    rendezvous = inventory.rendezvous
    if rendezvous.master not in names:
        rendezvous = replace(rendezvous, master=kept[0].name, address=kept[0].address)
    groups = {group: tuple(name for name in members if name in names) for group, members in inventory.groups.items()}
    return replace(inventory, nodes=kept, rendezvous=rendezvous, groups=groups)


def dialled_address(rendezvous: Rendezvous, node_count: int) -> str:
    """MASTER_ADDR: one node dials itself over loopback, several dial the rendezvous address."""
    return "127.0.0.1" if node_count == 1 else rendezvous.address
