"""What a run was started with, as plain data for those who read its events later: ranks, environment, how nodes are reached."""

from __future__ import annotations

from runbook.launch.environment import node_environment
from runbook.launch.ranks import layout
from runbook.model.inventory import EnvValue, Inventory, Node
from runbook.model.redact import GONE
from runbook.model.secret import Secret
from runbook.model.secret_formats import names_secret


def described(inventory: Inventory) -> dict[str, object]:
    """`env` holds the variables that have the same value on every node, each entry of `nodes` only its own. Secrets are `***`.

    A node has its first rank, how many it has, and the devices of those, none for CPU ranks.
    """
    by_node = layout(inventory)
    told = {
        name: {variable: _shown(variable, value) for variable, value in node_environment(by_node, node_ranks).items()}
        for name, node_ranks in by_node.by_node.items()
    }
    first = next(iter(told.values()), {})
    common = {
        variable: value
        for variable, value in first.items()
        if all(environment.get(variable) == value for environment in told.values())
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
                **_facts(node_ranks.node),
                "first_rank": node_ranks.ranks[0].rank,
                "ranks": len(node_ranks.ranks),
                "devices": sorted(node_ranks.node.gpus),
                "env": {key: value for key, value in told[name].items() if key not in common},
            }
            for name, node_ranks in by_node.by_node.items()
        ],
    }


def _shown(variable: str, value: EnvValue) -> str:
    """The value, unless it is a secret: one that says so, or one that somebody wrote in plain text under a name that does."""
    return GONE if isinstance(value, Secret) or names_secret(variable) else value


def _facts(node: Node) -> dict[str, str]:
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
