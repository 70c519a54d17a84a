"""The environment of a rank: what torchrun would set, the inventory's network settings, and the user's own `env`."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.launch.ranks import Rank, dialled_address
from runbook.model.inventory import EnvValue, Inventory, Node


def node_environment(inventory: Inventory, node: Node) -> dict[str, EnvValue]:
    """Variables that all ranks of a node share; weakest first: derived from the inventory, its `env`, the node's."""
    derived: dict[str, EnvValue] = {
        "MASTER_ADDR": dialled_address(inventory.rendezvous, len(inventory.nodes)),
        "MASTER_PORT": str(inventory.rendezvous.port),
        "WORLD_SIZE": str(inventory.world_size),
        "LOCAL_WORLD_SIZE": str(node.slots),
        "NODE_RANK": str(inventory.nodes.index(node)),
        "GROUP_RANK": str(inventory.nodes.index(node)),
    }
    if node.gpus:
        derived["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in sorted(node.gpus))
    if node.slots > 1:
        # As torchrun does: several processes with a thread per core each would fight over the cores.
        derived["OMP_NUM_THREADS"] = "1"
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
    value = node_environment(inventory, node).get(name)
    return value if isinstance(value, str) and value else None


def socket_interfaces(inventory: Inventory, node: Node) -> dict[str, str]:
    """Every `*_SOCKET_IFNAME` that is set for this node's ranks, whichever backend reads it: name -> expression."""
    environment = node_environment(inventory, node)
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {name: value for name in names if isinstance(value := environment.get(name), str) and value}


def hca_expression(inventory: Inventory, node: Node) -> str | None:
    """The `NCCL_IB_HCA` expression in force on this node, or None for NCCL's own choice."""
    value = node_environment(inventory, node).get("NCCL_IB_HCA")
    return value if isinstance(value, str) and value else None
