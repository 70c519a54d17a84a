"""Variables of torch, NCCL and gloo that ranks of one job see with different values, though the inventory does not say
so: a node's shell, module or `activate` line sets them. Some, as TORCH_DISTRIBUTED_DEBUG or NCCL_ALGO, have to be
alike, or the ranks wait for each other. That they differ is told, and accuses nobody."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.checks.context import Facts
from runbook.jobs.kept_processes import KeptProcesses
from runbook.launch.ranks import network_environment
from runbook.model.units import some
from runbook.transport.node_answers import RankConnections

MOST_TOLD = 6
LONGEST_VALUE = 60

Settings = Mapping[str, str]


def settings_of(kept: KeptProcesses, told: Mapping[str, Facts | RankConnections]) -> dict[str, Settings]:
    """By label of a rank, from what programs on the nodes tell of processes or connections."""
    found: dict[str, Settings] = {}
    for node, answer in told.items():
        masked = kept.logs.redactor_of(node).text
        for rank, settings in sorted((answer.get("settings") or {}).items(), key=lambda one: int(one[0])):
            found[f"rank {rank} on {node}"] = {name: masked(value) for name, value in settings.items()}
    return found


def unlike_settings(kept: KeptProcesses, told: Mapping[str, Facts | RankConnections]) -> list[str]:
    """A line for each such variable of the ranks that were seen."""
    seen, inventory = settings_of(kept, told), kept.at.inventory
    explained = {name for node in inventory.nodes for name in network_environment(inventory, node)}
    lines = []
    for name in sorted({name for settings in seen.values() for name in settings} - explained):
        labels: dict[str | None, list[str]] = {}
        for label, settings in seen.items():
            labels.setdefault(settings.get(name), []).append(label)
        if len(labels) > 1:
            each = (f"{_shown(value)} for {some(those, 4)}" for value, those in labels.items())
            lines.append(f"{name} is not the same everywhere: {', '.join(each)}")
    return lines[:MOST_TOLD]


def _shown(value: str | None) -> str:
    if value is None:
        return "not set"
    return f"`{value if len(value) <= LONGEST_VALUE else value[:LONGEST_VALUE] + '…'}`"
