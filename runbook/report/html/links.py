"""The links of a run as a heat map: each way between two nodes against the median. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.model.fold import fold
from runbook.report.html.recorded import Recorded, number
from runbook.report.record import StageRecord

BOUNDS = (0.5, 0.75, 0.9, 0.97)
"""Of the median: below the first a link is of level 0, above the last of level 4."""

LEVELS = (
    "less than half of the median",
    "50 to 75 % of the median",
    "75 to 90 % of the median",
    "90 to 97 % of the median",
    "as fast as the median",
)
AS_TABLE = 16
"""So many nodes have their numbers in the cells."""

AS_CELLS = 64
"""So many have a cell for each pair; above, the worst of each pair of groups stands for all between them."""

GROUPS = 24
WORST = 40
"""Links in the table of the slowest."""

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """The best that was measured from `source` to `target`, in Gbit/s; latency in microseconds, None where not measured."""

    source: str
    target: str
    gbps: float
    us: float | None
    both_gbps: float | None
    part: float  # of the median


@dataclass(frozen=True, slots=True)
class Cell:
    """`level` None: not measured. `text` and `title` are what a reader sees and what it is in full."""

    level: int | None
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Rows send, columns receive; both are named by `names`. A cell on the diagonal of single nodes is empty."""

    stage: str
    names: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: str  # table | cells | groups
    median: float
    count: int
    nodes: int
    worst: tuple[MeasuredPair, ...]  # slowest first, only those below the last bound


def heat_maps(recorded: Recorded) -> list[HeatMap]:
    return [found for stage in recorded.record.stages if (found := heat_map(recorded, stage))]


def heat_map(recorded: Recorded, stage: StageRecord) -> HeatMap | None:
    """None where the stage measured no link."""
    links = links_of(stage)
    if not links:
        return None
    named = {name for pair in links for name in pair}
    names = [name for name in stage.started.nodes if name in named]
    names += sorted(named - set(names))
    slow = sorted((link for link in links.values() if level(link.part) < len(BOUNDS)), key=lambda link: link.gbps)
    groups = [(name, [name]) for name in names]
    if len(names) > AS_CELLS:
        groups = groups_of(names, recorded.plan)
    kind = "groups" if len(names) > AS_CELLS else "table" if len(names) <= AS_TABLE else "cells"
    return HeatMap(
        stage.name,
        tuple(name for name, _ in groups),
        _rows(groups, links),
        kind,
        statistics.median(link.gbps for link in links.values()),
        len(links),
        len(names),
        tuple(slow[:WORST]),
    )


def links_of(stage: StageRecord) -> dict[Pair, MeasuredPair]:
    """Of each direction the fastest that was measured."""
    best: dict[Pair, tuple[float, float | None, float | None]] = {}
    for outcome in stage.outcomes:
        listed = outcome.metrics.get("links")
        for one in listed if isinstance(listed, list) else ():
            if not isinstance(one, Mapping):
                continue
            source, target, gbps = one.get("from"), one.get("to"), number(one.get("gbps"))
            if not isinstance(source, str) or not isinstance(target, str) or gbps is None or not 0 < gbps < 1e9:
                continue
            known = best.get((source, target))
            if known is None or gbps > known[0]:
                best[source, target] = (gbps, number(one.get("us")), number(one.get("both_gbps")))
    median = statistics.median(gbps for gbps, _, _ in best.values()) if best else 1.0
    return {pair: MeasuredPair(*pair, gbps, us, both, gbps / median) for pair, (gbps, us, both) in best.items()}


def level(part: float) -> int:
    return sum(part >= bound for bound in BOUNDS)


def groups_of(names: Sequence[str], plan: Mapping[str, object]) -> list[tuple[str, list[str]]]:
    """Nodes by the switch or rack that the inventory names, else so many in a row that there are not more than GROUPS."""
    listed = plan.get("nodes")
    facts = {one.get("name"): one for one in listed if isinstance(one, Mapping)} if isinstance(listed, list) else {}
    for key in ("leaf", "rack"):
        by: dict[str, list[str]] = {}
        for name in names:
            by.setdefault(str(facts.get(name, {}).get(key) or ""), []).append(name)
        if "" not in by and 1 < len(by) <= 2 * GROUPS:
            return list(by.items())
    size = math.ceil(len(names) / GROUPS)
    rows = [list(names[at : at + size]) for at in range(0, len(names), size)]
    return [(fold(row), row) for row in rows]


def _rows(
    groups: Sequence[tuple[str, Sequence[str]]], links: Mapping[Pair, MeasuredPair]
) -> tuple[tuple[Cell, ...], ...]:
    place = {name: at for at, (_, members) in enumerate(groups) for name in members}
    worst: dict[tuple[int, int], MeasuredPair] = {}
    for (source, target), link in links.items():
        key = place[source], place[target]
        if key not in worst or link.gbps < worst[key].gbps:
            worst[key] = link
    return tuple(tuple(_cell(worst.get((row, column))) for column in range(len(groups))) for row in range(len(groups)))


def _cell(link: MeasuredPair | None) -> Cell:
    if link is None:
        return Cell(None, "", "not measured")
    delay = "" if link.us is None else f", {link.us:g} µs"
    title = f"{link.source} → {link.target}: {link.gbps:.3g} Gbit/s, {link.part:.0%} of the median{delay}"
    return Cell(level(link.part), f"{link.gbps:.3g}", title)
