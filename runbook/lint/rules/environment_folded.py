"""Contradictions between levels: what a node's ranks get when all levels are folded into one environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from runbook.lint.rules.environment_contradictions import Contradiction, EnvironmentOfRanks, contradictions
from runbook.lint.rules.environment_written import WrittenVariable, of_inventory, of_playbook
from runbook.lint.subject import InventoryFile, PlaybookFile
from runbook.model.errors import Problem, Span
from runbook.model.inventory import EnvValue, Node

_Key = tuple[object, ...]


def contradictions_in_inventory(file: InventoryFile) -> Iterator[Problem]:
    """Nodes with the same environment and GPUs are judged once."""
    judged: dict[_Key, tuple[Contradiction, ...]] = {}
    nodes_at: dict[tuple[str, Span | None, str, str], list[str]] = {}
    for node in file.inventory.nodes:
        key = (tuple(node.env.items()), node.gpus, node.processes, node.windows)
        if key not in judged:
            judged[key] = tuple(contradictions(_ranks(file, node, {**file.inventory.env, **node.env})))
        for one in judged[key]:
            nodes_at.setdefault((one.id, _place(file, node, one), one.message, one.help), []).append(node.name)
    everywhere = len(file.inventory.nodes)
    for (id, span, message, help), nodes in nodes_at.items():
        where = "" if len(nodes) in (1, everywhere) else f" (on {nodes[0]} and {len(nodes) - 1} more)"
        yield Problem(f"env.{id}", message + where, span, help)


def contradictions_in_playbook(file: PlaybookFile) -> Iterator[Problem]:
    """What a launch's own `env` brings in, where it does so on every node: a stage may be for some of them."""
    if file.inventory is None or not isinstance(file.document.data, dict):
        return
    stages: dict[tuple[object, ...], list[WrittenVariable]] = {}
    for setting in of_playbook(file.document):
        stages.setdefault(setting.block, []).append(setting)
    for settings in stages.values():
        texts = {setting.name: setting.text for setting in settings}
        for one in _brought_in(file.inventory, texts):
            keys = next(setting.keys for name in one.names for setting in settings if setting.name == name)
            yield Problem(f"env.{one.id}", one.message, file.document.span(*keys), one.help)


def _brought_in(inventory: InventoryFile, texts: Mapping[str, str | None]) -> list[Contradiction]:
    judged: dict[_Key, list[Contradiction]] = {}
    for node in inventory.inventory.nodes:
        key = (tuple(node.env.items()), node.gpus, node.processes, node.windows)
        if key not in judged:
            env = {**inventory.inventory.env, **node.env}
            before = set(contradictions(_ranks(inventory, node, env)))
            after = contradictions(_ranks(inventory, node, {**env, **texts}))
            judged[key] = [one for one in after if one not in before and not texts.keys().isdisjoint(one.names)]
    first, *others = judged.values()
    return [one for one in first if all(one in other for other in others)]


def _ranks(file: InventoryFile, node: Node, env: Mapping[str, EnvValue | None]) -> EnvironmentOfRanks:
    inventory = file.inventory
    hca = inventory.infiniband.hca if inventory.infiniband is not None else None
    texts = {name: value for name, value in env.items() if isinstance(value, str)}
    if hca and "NCCL_IB_HCA" not in env:
        texts["NCCL_IB_HCA"] = hca
    return EnvironmentOfRanks(
        env=texts,
        interface=texts.get("NCCL_SOCKET_IFNAME", inventory.network.interface),
        infiniband=inventory.infiniband is not None,
        gpus=node.gpus if file.sound("gpus") else None,
        slots=node.slots,
        windows=node.windows,
    )


def _place(file: InventoryFile, node: Node, one: Contradiction) -> Span | None:
    """Where the first of its names was written that the node takes from this file."""
    for name in one.names:
        span = file.origins.span(node.name, "env", name)
        if span is not None:
            return span
    return None


def nccl_unused(file: InventoryFile) -> Iterator[Problem]:
    """NCCL's variables in a job that runs on gloo; told once, at the first."""
    if file.inventory.rendezvous.backend != "gloo" or not file.sound("backend", "gpus", "shell", "nodes", "groups"):
        return
    settings = [one for one in of_inventory(file.document) if one.name.startswith(("NCCL_", "TORCH_NCCL_"))]
    if not settings:
        return
    others = len({one.name for one in settings}) - 1
    more = f" and {others} more variables are" if others > 1 else " and another variable are" if others else " is"
    if any(node.gpus for node in file.inventory.nodes):
        why = "the backend is gloo"
    else:
        why = "no node has `gpus`, so the backend is gloo"
    message = f"`{settings[0].name}`{more} NCCL's, which this job never starts: {why}"
    help = "give the nodes their `gpus`, or leave NCCL's variables out"
    yield Problem("env.nccl-unused", message, file.document.key_span(*settings[0].keys), help)


def shared_host_id(file: InventoryFile) -> Iterator[Problem]:
    """NCCL takes ranks with one NCCL_HOSTID for processes of one machine."""
    seen: dict[str, Node] = {}
    for node in file.inventory.nodes:
        value = node.env.get("NCCL_HOSTID", file.inventory.env.get("NCCL_HOSTID"))
        if not isinstance(value, str) or not value:
            continue
        first = seen.setdefault(value, node)
        if first is not node:
            message = f"`{first.name}` and `{node.name}` have the same NCCL_HOSTID: NCCL takes them for one machine"
            span = file.origins.span(node.name, "env", "NCCL_HOSTID")
            yield Problem("env.shared-host-id", message, span, "leave it out: NCCL tells machines apart by itself")
            return
