"""The environment of a rank: what torchrun would set, the inventory's network settings, and the user's own `env`."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.launch.ranks import NodeRanks, Rank, RankLayout
from runbook.model.inventory import EnvValue, Inventory, Node


def node_environment(layout: RankLayout, node_ranks: NodeRanks) -> dict[str, EnvValue]:
    """Variables that all ranks of a node share; weakest first: derived from the inventory, its `env`, the node's."""
    node = node_ranks.node
    derived: dict[str, EnvValue] = {
        "MASTER_ADDR": layout.address,
        "MASTER_PORT": str(layout.inventory.rendezvous.port),
        "WORLD_SIZE": str(layout.world_size),
        "LOCAL_WORLD_SIZE": str(len(node_ranks.ranks)),
        "NODE_RANK": str(node_ranks.node_rank),
        "GROUP_RANK": str(node_ranks.node_rank),
        "RUNBOOK_BACKEND": layout.inventory.rendezvous.backend,
    }
    if node.gpus:
        derived["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in sorted(node.gpus))
    if len(node_ranks.ranks) > 1:
        # As torchrun does: several processes with a thread per core each would fight over the cores.
        derived["OMP_NUM_THREADS"] = "1"
    return {**derived, **network_environment(layout.inventory, node)}


def network_environment(inventory: Inventory, node: Node) -> dict[str, EnvValue]:
    """What the inventory says about networks, and the user's own variables over it: the inventory's, then the node's."""
    derived: dict[str, EnvValue] = {}
    if inventory.network.interface:
        derived["GLOO_SOCKET_IFNAME"] = inventory.network.interface
        derived["NCCL_SOCKET_IFNAME"] = inventory.network.interface
    if inventory.infiniband and inventory.infiniband.hca:
        derived["NCCL_IB_HCA"] = inventory.infiniband.hca
    return {**derived, **inventory.env, **node.env}


def rank_environment(rank: Rank) -> Mapping[str, str]:
    """What differs between the ranks of one node."""
    return {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.local_rank)}


def socket_interface(inventory: Inventory, node: Node) -> str | None:
    """The `*_SOCKET_IFNAME` expression that the job's backend will read on this node, or None."""
    name = "NCCL_SOCKET_IFNAME" if inventory.rendezvous.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    return socket_interfaces(inventory, node).get(name)


def socket_interfaces(inventory: Inventory, node: Node) -> dict[str, str]:
    """Every `*_SOCKET_IFNAME` that is set for this node's ranks, whichever backend reads it: name -> expression."""
    environment = network_environment(inventory, node)
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {name: value for name in names if isinstance(value := environment.get(name), str) and value}


def hca_expression(inventory: Inventory, node: Node) -> str | None:
    """The `NCCL_IB_HCA` expression in force on this node, or None for NCCL's own choice."""
    value = network_environment(inventory, node).get("NCCL_IB_HCA")
    return value if isinstance(value, str) and value else None
