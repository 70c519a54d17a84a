"""Which rank runs on which node and device of a job, and with which environment?

The master's ranks come first, then node by node, inside a node by device index. The environment holds the variables
that torchrun would set, the inventory's network settings, and the user's own `env`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.model.inventory import EnvValue, Inventory, Node, Rendezvous
from runbook.model.redact import SECRET_MASK
from runbook.model.secrets import Secret, secret_kind


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the job. `device` is the GPU's index on its node, or None for a CPU rank."""

    rank: int
    node: str
    node_rank: int
    local_rank: int
    device: int | None

    @property
    def file_stem(self) -> str:
        """The beginning of the names of the rank's files."""
        return f"rank-{self.rank:05d}.{self.node}"


@dataclass(frozen=True, slots=True)
class NodeRanks:
    """One node's place in the job, and the ranks that run there."""

    node: Node
    node_rank: int
    ranks: tuple[Rank, ...]


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The ranks of every node, by its name, in rank order. They are worked out once for all nodes, because a node's
    ranks depend on the nodes before it."""

    inventory: Inventory
    world_size: int
    by_node: Mapping[str, NodeRanks]

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """Every rank of the job, in order of its number."""
        return tuple(rank for node_ranks in self.by_node.values() for rank in node_ranks.ranks)

    @property
    def address(self) -> str:
        """The address that every rank dials."""
        return dialled_address(self.inventory.rendezvous, len(self.by_node))

    @property
    def meets_over_network(self) -> bool:
        """Whether ranks of several machines have to meet, so that a loopback address would be wrong."""
        return len(self.by_node) > 1 and not self.inventory.one_machine


def rank_layout(inventory: Inventory) -> RankLayout:
    """The ranks for the inventory's nodes, which already stand in rank order."""
    by_node: dict[str, NodeRanks] = {}
    first = 0
    for node_rank, node in enumerate(inventory.nodes):
        devices: Sequence[int | None] = sorted(node.gpus) or [None] * node.processes
        ranks = tuple(
            Rank(rank=first + local_rank, node=node.name, node_rank=node_rank, local_rank=local_rank, device=device)
            for local_rank, device in enumerate(devices)
        )
        by_node[node.name] = NodeRanks(node, node_rank, ranks)
        first += len(ranks)
    return RankLayout(inventory, first, by_node)


def narrow_inventory(inventory: Inventory, nodes: Sequence[Node]) -> Inventory:
    """The same inventory with only these nodes. If its master is not among them, the first of them becomes the master,
    at its own address."""
    names = {node.name for node in nodes}
    kept = tuple(node for node in inventory.nodes if node.name in names)
    rendezvous = inventory.rendezvous
    if rendezvous.master not in names:
        rendezvous = replace(rendezvous, master=kept[0].name, address=kept[0].address)
    groups = {group: tuple(name for name in members if name in names) for group, members in inventory.groups.items()}
    return replace(inventory, nodes=kept, rendezvous=rendezvous, groups=groups)


def dialled_address(rendezvous: Rendezvous, node_count: int) -> str:
    """The value of MASTER_ADDR: a single node dials itself over loopback, several nodes dial the rendezvous address."""
    return "127.0.0.1" if node_count == 1 else rendezvous.address


def endpoint_text(address: str, port: int | str) -> str:
    """Address and port as one word; an IPv6 address stands in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def node_environment(layout: RankLayout, node_ranks: NodeRanks) -> dict[str, EnvValue]:
    """The variables that all ranks of a node share. The weakest first: derived from the inventory, the inventory's
    `env`, the node's `env`."""
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
        # torchrun does the same: several processes with one thread per core each would compete for the cores.
        derived["OMP_NUM_THREADS"] = "1"
    return {**derived, **network_environment(layout.inventory, node)}


def network_environment(inventory: Inventory, node: Node) -> dict[str, EnvValue]:
    """The variables that the inventory's network settings give, overridden by the inventory's `env`, then by the
    node's."""
    derived: dict[str, EnvValue] = {}
    if inventory.network.interface:
        derived["GLOO_SOCKET_IFNAME"] = inventory.network.interface
        derived["NCCL_SOCKET_IFNAME"] = inventory.network.interface
    if inventory.infiniband and inventory.infiniband.hca:
        derived["NCCL_IB_HCA"] = inventory.infiniband.hca
    return {**derived, **inventory.env, **node.env}


def rank_environment(rank: Rank) -> Mapping[str, str]:
    """The variables that differ between the ranks of one node."""
    return {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.local_rank)}


def socket_interface(inventory: Inventory, node: Node) -> str | None:
    """The `*_SOCKET_IFNAME` expression that the job's backend reads on this node, or None if it is not set."""
    name = "NCCL_SOCKET_IFNAME" if inventory.rendezvous.backend == "nccl" else "GLOO_SOCKET_IFNAME"
    return socket_interfaces(inventory, node).get(name)


def socket_interfaces(inventory: Inventory, node: Node) -> dict[str, str]:
    """The expressions of every `*_SOCKET_IFNAME` that is set for this node's ranks, by name, whichever backend reads
    it."""
    environment = network_environment(inventory, node)
    names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
    return {name: value for name in names if isinstance(value := environment.get(name), str) and value}


def hca_expression(inventory: Inventory, node: Node) -> str | None:
    """The `NCCL_IB_HCA` expression that applies on this node, or None for NCCL's own choice."""
    value = network_environment(inventory, node).get("NCCL_IB_HCA")
    return value if isinstance(value, str) and value else None


def describe_nodes(inventory: Inventory, spares: Iterable[Node] = ()) -> dict[str, object]:
    """The description of a job's nodes and spares in a report. `env` holds the variables that have the same value on
    every node, and each entry of `nodes` only the variables that differ. Secrets are `***`.

    An entry has the node's first rank, the number of its ranks, and their devices, which are empty for CPU ranks; a
    spare has 0 ranks.
    """
    by_node = rank_layout(inventory)
    environments = {
        name: {
            variable: _masked_value(variable, value)
            for variable, value in node_environment(by_node, node_ranks).items()
        }
        for name, node_ranks in by_node.by_node.items()
    }
    first = next(iter(environments.values()), {})
    common = {
        variable: value
        for variable, value in first.items()
        if all(environment.get(variable) == value for environment in environments.values())
    }
    return {
        "name": inventory.name,
        "master": inventory.rendezvous.master,
        "address": by_node.address,
        "port": inventory.rendezvous.port,
        "backend": inventory.rendezvous.backend,
        "world_size": by_node.world_size,
        "ports": [list(range_) for range_ in inventory.network.ports],
        "env": common,
        "nodes": [
            {
                "name": name,
                **_reported_node_facts(node_ranks.node),
                "first_rank": node_ranks.ranks[0].rank,
                "ranks": len(node_ranks.ranks),
                "devices": sorted(node_ranks.node.gpus),
                "env": {key: value for key, value in environments[name].items() if key not in common},
            }
            for name, node_ranks in by_node.by_node.items()
        ]
        + [{"name": spare.name, **_reported_node_facts(spare), "ranks": 0, "env": {}} for spare in spares],
    }


def _masked_value(variable: str, value: EnvValue) -> str:
    """The value, or `***` if it is a secret: by its type, or because the variable's name is that of a secret."""
    return SECRET_MASK if isinstance(value, Secret) or secret_kind(variable) else value


def _reported_node_facts(node: Node) -> dict[str, str]:
    facts = {
        "address": node.address,
        "connection": node.connection,
        "user": node.ssh.user,
        "python": node.interpreter,
        "activate": node.activate,
        "workdir": node.workdir,
        "shell": node.shell,
        "container": node.place if node.place != node.name else None,
        "rack": node.rack,
        "leaf": node.leaf,
    }
    return {name: value for name, value in facts.items() if value}
