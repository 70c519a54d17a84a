"""Compares two runs, and keeps only what differs between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from runbook.model.node_ranges import fold
from runbook.model.verdict import Verdict
from runbook.report.html import nodes as of_nodes
from runbook.report.html.charts import Chart, SizeRow, measured_links, overlay_chart, size_rows
from runbook.report.html.recorded_run import Recorded
from runbook.report.run_record import StageRecord

MIN_SHOWN_CHANGE = 0.1
"""A time, a bandwidth or a link that changed by a smaller part is not shown as a difference."""

MIN_SHOWN_CHANGE_S = 0.5
"""A time that changed by fewer seconds than this is not shown either."""

MAX_CHANGED_LINKS = 40
NO_VALUE = "(none)"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two runs."""

    title: str
    verdict: Verdict
    recorded: Recorded


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact with its two values; `where`: the nodes that it holds for, empty for a fact of the run."""

    name: str
    one: str
    other: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two numbers of one thing, None if a run has not measured it; `part`: the second divided by the first."""

    name: str
    one: float | None
    other: float | None
    one_verdict: Verdict | None = None
    other_verdict: Verdict | None = None

    @property
    def part(self) -> float | None:
        return self.other / self.one if self.one and self.other else None

    @property
    def differs(self) -> bool:
        return self.one != self.other if self.part is None else abs(self.part - 1) >= MIN_SHOWN_CHANGE

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "a": self.one, "b": self.other}


@dataclass(frozen=True, slots=True)
class SweepPair:
    """One AllReduce stage in both runs, size by size."""

    stage: str
    sizes: tuple[tuple[float, Ratio], ...]
    chart: Chart | None


@dataclass(frozen=True, slots=True)
class RunComparison:
    """All that differs between two runs, by subject."""

    one: Side
    other: Side
    run: tuple[Difference, ...]
    nodes: tuple[Difference, ...]
    versions: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    stages: tuple[Ratio, ...]
    sweeps: tuple[SweepPair, ...]
    links: tuple[Ratio, ...]
    more_links: int
    unrecorded: tuple[str, ...]  # runs that did not record ranks and environment

    @property
    def alike(self) -> bool:
        return not (
            self.run or self.nodes or self.versions or self.environment or self.stages or self.links
        ) and not any(ratio.differs for pair in self.sweeps for _, ratio in pair.sizes)

    def as_json(self) -> dict[str, object]:
        """Bandwidth in GB/s by message size in bytes, links in Gbit/s, times in seconds; `a` and `b` are the runs."""
        facts = {name: getattr(self, name) for name in ("run", "nodes", "versions", "environment")}
        return {
            "alike": self.alike,
            "differences": [
                {"of": of, "name": one.name, "a": one.one, "b": one.other, "where": one.where}
                for of, differences in facts.items()
                for one in differences
            ],
            "stages": [
                {**ratio.as_json(), "verdicts": [ratio.one_verdict, ratio.other_verdict]} for ratio in self.stages
            ],
            "busbw": [
                {"stage": pair.stage, "sizes": [{"bytes": size, **ratio.as_json()} for size, ratio in pair.sizes]}
                for pair in self.sweeps
            ],
            "links": [ratio.as_json() for ratio in self.links],
        }


def compare_runs(one: Recorded, other: Recorded) -> RunComparison:
    """All differences between two runs."""
    links, more = _changed_links(one, other)
    known = of_nodes.planned_nodes(one), of_nodes.planned_nodes(other)
    seen = of_nodes.reach_measurements(one), of_nodes.reach_measurements(other)
    versions = [{name: of_nodes.version_facts(metrics) for name, metrics in of.items()} for of in seen]
    recorded = all(known)
    sides = _run_side(one), _run_side(other)
    if sides[0].title == sides[1].title:
        sides = replace(sides[0], title=one.folder.name), replace(sides[1], title=other.folder.name)
    return RunComparison(
        one=sides[0],
        other=sides[1],
        run=tuple(_group_differences([(_run_facts(one), _run_facts(other), "")])),
        nodes=_node_differences(*[{name: _compared_facts(entry) for name, entry in of.items()} for of in known])
        if recorded
        else (),
        versions=_node_differences(*versions),
        environment=_node_differences(of_nodes.rank_environments(one), of_nodes.rank_environments(other))
        if recorded
        else (),
        stages=tuple(_stage_ratios(one, other)),
        sweeps=tuple(_sweep_pairs(*sides)),
        links=tuple(links),
        more_links=more,
        unrecorded=tuple(side.title for side, of in zip(sides, known, strict=True) if not of),
    )


def _run_side(recorded: Recorded) -> Side:
    record = recorded.record
    name = record.started.run_id if record.started else ""
    verdict = record.finished.verdict if record.finished else Verdict.UNKNOWN
    return Side(name or recorded.folder.name, verdict, recorded)


def _run_facts(recorded: Recorded) -> dict[str, str]:
    """The facts of a run that are compared, by name."""
    record = recorded.record
    started, ended = record.started, record.finished
    return {
        "verdict": str(ended.verdict) if ended else "none: it did not end",
        "stopped at": record.stopped_at or "",
        "causes": ", ".join(record.causes),
        "playbook": started.playbook if started else "",
        "inventory": started.inventory if started else "",
        "runbook": started.version if started else "",
        "nodes": fold(started.nodes) if started else "",
        "dropped": fold(record.dropped),
        **{name: value for name, value in of_nodes.rendezvous_facts(recorded) if name != "inventory"},
    }


def _compared_facts(entry: Mapping[str, object]) -> dict[str, str]:
    facts = {
        "address": of_nodes.text_of_value(entry.get("address")),
        "ranks": of_nodes.ranks_text(entry),
        "devices": of_nodes.devices_text(entry),
        "rack": of_nodes.text_of_value(entry.get("rack")),
        "leaf": of_nodes.text_of_value(entry.get("leaf")),
        **of_nodes.connection_facts(entry),
    }
    return {name: value for name, value in facts.items() if value and name != "ranks on it"}


def _node_differences(
    one: Mapping[str, Mapping[str, str]], other: Mapping[str, Mapping[str, str]]
) -> tuple[Difference, ...]:
    """Differences of nodes that both runs have; the same change on several is shown once."""
    both = [name for name in one if name in other]
    return tuple(_group_differences([(one[name], other[name], name) for name in both]))


def _group_differences(sides: list[tuple[Mapping[str, str], Mapping[str, str], str]]) -> list[Difference]:
    changes: dict[tuple[str, str, str], list[str]] = {}
    for one, other, where in sides:
        for name in sorted({*one, *other}):
            values = one.get(name) or NO_VALUE, other.get(name) or NO_VALUE
            if values[0] != values[1]:
                changes.setdefault((name, *values), []).append(where)
    return [Difference(*change, fold(filter(None, where))) for change, where in changes.items()]


def _stages_by_name(recorded: Recorded) -> dict[str, StageRecord]:
    return {stage.name: stage for stage in recorded.record.stages}


def _stage_ratios(one: Recorded, other: Recorded) -> list[Ratio]:
    """The stages whose verdict or time differs, or that only one run has."""
    first, second = _stages_by_name(one), _stages_by_name(other)
    found = []
    for name in dict.fromkeys([*first, *second]):
        a, b = first.get(name), second.get(name)
        ratio = Ratio(name, _stage_seconds(a), _stage_seconds(b), a.verdict if a else None, b.verdict if b else None)
        moment = abs((ratio.one or 0) - (ratio.other or 0)) < MIN_SHOWN_CHANGE_S
        if ratio.one_verdict is not ratio.other_verdict or (ratio.differs and not moment):
            found.append(ratio)
    return found


def _stage_seconds(stage: StageRecord | None) -> float | None:
    return stage.finished.seconds if stage and stage.finished else None


def _sweep_pairs(one: Side, other: Side) -> list[SweepPair]:
    first, second = _stages_by_name(one.recorded), _stages_by_name(other.recorded)
    found = []
    for name in first:
        if name not in second:
            continue
        rows = size_rows(one.recorded, first[name]), size_rows(other.recorded, second[name])
        if not all(rows):
            continue
        by_size = [{row.size: row for row in of} for of in rows]
        sizes = sorted({*by_size[0], *by_size[1]})
        pairs = tuple(
            (size, Ratio("busbw", _row_busbw(by_size[0].get(size)), _row_busbw(by_size[1].get(size)))) for size in sizes
        )
        found.append(SweepPair(name, pairs, overlay_chart(rows, (one.title, other.title))))
    return found


def _row_busbw(row: SizeRow | None) -> float | None:
    return row.busbw if row else None


def _changed_links(one: Recorded, other: Recorded) -> tuple[list[Ratio], int]:
    """Links that both runs measured and that changed, the largest change first, and how many more there are."""
    measured = []
    for recorded in (one, other):
        found = [measured_links(stage) for stage in recorded.record.stages if stage.started.check == "links"]
        measured.append(found[-1] if found else {})
    first, second = measured
    changed = [
        ratio
        for pair in first
        if pair in second and (ratio := Ratio(" → ".join(pair), first[pair].gbps, second[pair].gbps)).differs
    ]
    changed.sort(key=lambda ratio: ratio.part or 0.0)
    return changed[:MAX_CHANGED_LINKS], max(0, len(changed) - MAX_CHANGED_LINKS)
