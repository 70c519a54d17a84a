"""Gathers what a run recorded of each node: ranks, how the node is reached, environment and versions, and where nodes
differ. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from runbook.model.grouping import values_by_key
from runbook.model.units import range_text, range_texts
from runbook.model.verdict import Verdict
from runbook.report.html.recorded_run import Recorded, mappings_in

PER_NODE_VARIABLES = ("NODE_RANK", "GROUP_RANK")
"""Variables that must differ between nodes."""

PER_NODE_MEASUREMENTS = ("hostname", "clock_offset_s")
"""Measurements of `reach` that differ between nodes by nature."""

RANKS_ON_IT = "ranks on it"

NodesByValue = tuple[str, tuple[tuple[str, tuple[str, ...]], ...]]
"""A name, and each of its values with the nodes that have it, the commonest first. NOT_SET stands for no value."""

NOT_SET = "(not set)"


@dataclass(frozen=True, slots=True)
class NodeSummary:
    """One node: `ranks` as text (`0-7`), and a verdict for every stage, None for stages that it took no part in."""

    name: str
    address: str
    ranks: str
    devices: str
    hostname: str
    verdicts: tuple[Verdict | None, ...]


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes of a run. `same` are facts that all nodes share, `different` those that they do not; the environment is
    divided likewise."""

    stages: tuple[str, ...]
    rows: tuple[NodeSummary, ...]
    rendezvous: tuple[tuple[str, str], ...]
    same: tuple[tuple[str, str], ...]
    different: tuple[NodesByValue, ...]
    env_same: tuple[tuple[str, str], ...]
    env_different: tuple[NodesByValue, ...]
    planned: bool  # whether the run recorded its ranks and environment

    @property
    def bad(self) -> tuple[NodeSummary, ...]:
        """The nodes with a verdict that stops a run at some stage, failures first."""
        worst = [row for row in self.rows if any(verdict and verdict.stops for verdict in row.verdicts)]
        return tuple(sorted(worst, key=lambda row: Verdict.FAIL not in row.verdicts))


def nodes_of_run(recorded: Recorded) -> Nodes:
    """All nodes of a run, with what they share and where they differ."""
    names = list(recorded.record.started.nodes) if recorded.record.started else []
    plan = planned_nodes(recorded)
    seen = reach_measurements(recorded)
    facts = {name: {**connection_facts(plan.get(name, {})), **version_facts(seen.get(name, {}))} for name in names}
    if any(entry.get("ranks") == 0 for entry in plan.values()):
        for of_node in facts.values():  # spares have none by design, and the table tells how many the others have
            of_node.pop(RANKS_ON_IT, None)
    same, different = split_shared_facts(facts)
    env_same, env_different = split_shared_facts(rank_environments(recorded), by_design=PER_NODE_VARIABLES)
    stages = list(dict.fromkeys(stage.name for stage in recorded.record.stages))
    verdicts: dict[str, dict[str, Verdict]] = {}
    for stage in recorded.record.stages:
        for outcome in stage.outcomes:
            verdicts.setdefault(outcome.node, {})[stage.name] = outcome.verdict
    rows = tuple(
        NodeSummary(
            name,
            text_of_value(plan.get(name, {}).get("address")),
            ranks_text(plan.get(name, {})),
            devices_text(plan.get(name, {})),
            text_of_value(seen.get(name, {}).get("hostname")),
            tuple(verdicts.get(name, {}).get(stage) for stage in stages),
        )
        for name in names
    )
    return Nodes(
        stages=tuple(stages),
        rows=rows,
        rendezvous=rendezvous_facts(recorded),
        same=same,
        different=different,
        env_same=env_same,
        env_different=env_different,
        planned=bool(plan),
    )


def planned_nodes(recorded: Recorded) -> dict[str, Mapping[str, object]]:
    """The plan's entry of each node, by name."""
    found = mappings_in(recorded.plan.get("nodes"))
    return {name: one for one in found if isinstance(name := one.get("name"), str)}


def reach_measurements(recorded: Recorded) -> dict[str, Mapping[str, object]]:
    """What `reach` measured of each node."""
    return {
        outcome.node: outcome.metrics
        for stage in recorded.record.stages
        if stage.started.check == "reach"
        for outcome in stage.outcomes
    }


def rendezvous_facts(recorded: Recorded) -> tuple[tuple[str, str], ...]:
    plan = recorded.plan
    if not plan:
        return ()
    facts = {
        "inventory": text_of_value(plan.get("name")),
        "master": text_of_value(plan.get("master")),
        "rendezvous": f"{text_of_value(plan.get('address'))}:{text_of_value(plan.get('port'))}",
        "backend": text_of_value(plan.get("backend")),
        "world size": text_of_value(plan.get("world_size")),
    }
    return tuple((name, value) for name, value in facts.items() if value)


def connection_facts(entry: Mapping[str, object]) -> dict[str, str]:
    """How the node is reached and what runs there, without what differs in every cluster."""
    kept = ("connection", "user", "python", "activate", "workdir", "shell", "container")
    facts = {name: text_of_value(entry.get(name)) for name in kept}
    if entry:
        facts[RANKS_ON_IT] = text_of_value(entry.get("ranks"))
    return {("interpreter" if name == "python" else name): value for name, value in facts.items() if value}


def version_facts(metrics: Mapping[str, object]) -> dict[str, str]:
    return {
        name.replace("_", " "): text_of_value(value)
        for name, value in metrics.items()
        if name not in PER_NODE_MEASUREMENTS and isinstance(value, str | int) and not isinstance(value, bool)
    }


def rank_environments(recorded: Recorded) -> dict[str, dict[str, str]]:
    """The environment variables of each node's ranks, by node; nodes without ranks are left out."""
    common = _mapping_texts(recorded.plan.get("env"))
    return {
        name: {**common, **_mapping_texts(entry.get("env"))}
        for name, entry in planned_nodes(recorded).items()
        if entry.get("ranks") != 0
    }


def split_shared_facts(
    facts: Mapping[str, Mapping[str, str]], by_design: Iterable[str] = ()
) -> tuple[tuple[tuple[str, str], ...], tuple[NodesByValue, ...]]:
    """The facts that all nodes share, and those that they do not, each by name. Facts that must differ are left out."""
    names = sorted({name for of in facts.values() for name in of} - set(by_design if len(facts) > 1 else ()))
    same: list[tuple[str, str]] = []
    different: list[NodesByValue] = []
    for name in names:
        values = values_by_key((of.get(name, NOT_SET), node) for node, of in facts.items())
        if len(values) == 1:
            same.append((name, next(iter(values))))
        else:
            ordered = sorted(values.items(), key=lambda value: -len(value[1]))
            different.append((name, tuple((value, tuple(of)) for value, of in ordered)))
    return tuple(same), tuple(different)


def ranks_text(entry: Mapping[str, object]) -> str:
    first, count = entry.get("first_rank"), entry.get("ranks")
    if count == 0:
        return "spare"
    if not isinstance(first, int) or not isinstance(count, int) or count < 1:
        return ""
    return range_text(first, first + count - 1)


def devices_text(entry: Mapping[str, object]) -> str:
    devices = entry.get("devices")
    if not entry or not isinstance(devices, list):
        return ""
    return "CPU" if not devices else "GPU " + ",".join(range_texts(one for one in devices if isinstance(one, int)))


def _mapping_texts(value: object) -> dict[str, str]:
    return {str(name): text_of_value(one) for name, one in value.items()} if isinstance(value, Mapping) else {}


def text_of_value(value: object) -> str:
    return "" if value is None else str(value)
