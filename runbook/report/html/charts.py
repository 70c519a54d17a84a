"""Draws what a run measured: bandwidth by size as a chart, links as a heat map; holds the scales of all drawings.
Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.model.grouping import values_by_key
from runbook.model.node_ranges import fold
from runbook.model.units import bytes_text, significant_digits_text
from runbook.report.html.recorded_run import Recorded
from runbook.report.run_record import NodePair, StageRecord, fastest_links, finite_number, slowest_links_between

TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
MAX_TIME_TICKS = 6


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis. `anchor`: which end of the text lies at the mark; `odd` marks are dropped if there is little
    room."""

    at: str
    text: str
    anchor: str = "middle"
    odd: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """A scale from `low` to `high`, both finite; for a logarithmic scale both are above 0."""

    low: float
    high: float
    log: bool = False

    def part(self, value: float) -> float:
        """The place of a value: 0 at `low`, 1 at `high`; a value outside is at the nearer end."""
        low, high, value = map(self._linear, (self.low, self.high, value))
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5

    def _linear(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value


def percent_text(part: float) -> str:
    return f"{part * 100:.2f}".rstrip("0").rstrip(".") + "%"


def pixels_text(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")


def scale_around(values: Sequence[float]) -> Scale:
    """A logarithmic scale with some room around these values, which are all above 0."""
    low, high = min(values), max(values)
    return Scale(low / 1.3, high * 1.3 if high > low * 1.5 else low * 2.5, log=True)


def decimal_ticks(scale: Scale) -> list[float]:
    """The numbers 1, 2, 5, 10, … inside a logarithmic scale; powers of ten alone if these are enough."""
    first, last = math.floor(math.log10(scale.low)), math.ceil(math.log10(scale.high))
    steps = (1,) if last - first > 3 else (1, 2, 5)
    found = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    found = [value for value in found if scale.low <= value <= scale.high]
    return found[:: math.ceil(len(found) / 8)] if found else [scale.low]


def time_ticks(seconds: float) -> list[float]:
    """Seconds after the beginning, in round steps; the beginning is one of them."""
    if seconds <= 0:
        return [0.0]
    step = next((float(step) for step in TICK_STEPS_S if seconds / step <= MAX_TIME_TICKS), seconds / MAX_TIME_TICKS)
    if seconds < MAX_TIME_TICKS / 2:
        step = 10.0 ** math.floor(math.log10(seconds / 2))
        step = next(wide for wide in (step, 2 * step, 5 * step, 10 * step) if seconds / wide <= MAX_TIME_TICKS)
    return [step * number for number in range(int(seconds / step) + 1)]


CHART_HEIGHT_PIXELS = 230
"""Pixels of a chart."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    """What was measured of one message size, in microseconds and GB/s (10^9 bytes); None if it is not known."""

    size: float
    time_us: float | None
    algbw: float | None
    busbw: float | None
    wrong: float | None
    p50_us: float | None
    p99_us: float | None


@dataclass(frozen=True, slots=True)
class Series:
    """A line through values: `segments` are (x1, y1, x2, y2), `dots` (x, y, what is there)."""

    name: str
    kind: str  # a class of the stylesheet
    segments: tuple[tuple[str, str, str, str], ...]
    dots: tuple[tuple[str, str, str], ...]


SeriesPoints = tuple[str, str, Sequence[tuple[float, float]]]
"""Name, kind and points of a series that is not drawn yet."""
NumberFormat = Callable[..., str]
"""Makes a number a text, with so many significant digits if a second argument says so."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart to draw. `band` (y, height, name) and `gate` (y, name) are drawn behind the lines."""

    title: str
    unit: str
    label: str  # what it shows, for those who do not see it
    across: tuple[Tick, ...]
    up: tuple[tuple[str, str], ...] = ()  # (y, text)
    series: tuple[Series, ...] = ()
    band: tuple[str, str, str] | None = None
    gate: tuple[str, str] | None = None
    height: int = CHART_HEIGHT_PIXELS


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that one AllReduce stage measured. `gate`, `normal`: GB/s at the largest size."""

    stage: str
    rows: tuple[SizeRow, ...]
    charts: tuple[Chart, ...]
    gate: float | None
    normal: tuple[float, float] | None
    source: str


def allreduce_sweeps(recorded: Recorded) -> list[Sweep]:
    return [found for stage in recorded.record.stages if (found := stage_sweep(recorded, stage))]


def stage_sweep(recorded: Recorded, stage: StageRecord) -> Sweep | None:
    """The sweep of a stage; None if the stage measured no size."""
    rows = size_rows(recorded, stage)
    if not rows:
        return None
    gate, normal, source = _gate_and_normal_range(stage)
    charts = [_busbw_chart(rows, gate, normal), _time_chart(rows)]
    return Sweep(stage.name, rows, tuple(chart for chart in charts if chart), gate, normal, source)


def size_rows(recorded: Recorded, stage: StageRecord) -> tuple[SizeRow, ...]:
    """The rows of a stage, from its progress events, or else from its outcomes."""
    listing: Sequence[object] = recorded.progress_of(stage).rows
    if not listing:
        listed = (outcome.metrics.get("rows") for outcome in stage.outcomes)
        listing = next((rows for rows in listed if isinstance(rows, list) and rows), [])
    return tuple(row for values in listing if isinstance(values, Mapping) and (row := _size_row(values)))


def _size_row(values: Mapping[str, object]) -> SizeRow | None:
    size = finite_number(values.get("size"))
    if size is None or not 0 < size < 1e18:
        return None
    names = ("time_us", "algbw", "busbw", "wrong", "p50_us", "p99_us")
    return SizeRow(size, *(finite_number(values.get(name)) for name in names))


def _gate_and_normal_range(stage: StageRecord) -> tuple[float | None, tuple[float, float] | None, str]:
    """The gate, the normal range and the source of the range, from the outcomes of a stage; None if there is none."""
    for outcome in stage.outcomes:
        gate = finite_number(outcome.metrics.get("gate_busbw_gbytes"))
        span = outcome.metrics.get("expected_busbw_gbytes")
        if isinstance(span, list) and len(span) == 2:
            low, high = finite_number(span[0]), finite_number(span[1])
            if low and low > 0:
                normal = (low, high if high and high > low else low)
                return gate, normal, str(outcome.metrics.get("expected_source") or "")
        if gate:
            return gate, None, ""
    return None, None, ""


def _busbw_chart(rows: Sequence[SizeRow], gate: float | None, normal: tuple[float, float] | None) -> Chart | None:
    points = [(row.size, row.busbw) for row in rows if row.busbw and 0 < row.busbw < 1e9]
    if not points:
        return None
    limits = [limit for limit in (gate, *(normal or ())) if limit and 0 < limit < 1e9]
    up = scale_around([*(value for _, value in points), *limits])
    top = max(points, key=lambda point: point[1])
    band = None
    if normal:
        high, low = _y_pixels(up, normal[1]), _y_pixels(up, normal[0])
        high_text = f" to {significant_digits_text(normal[1])}" if normal[1] > normal[0] else ""
        text = f"normal here: {significant_digits_text(normal[0])}{high_text} GB/s"
        band = (pixels_text(high), pixels_text(max(2.0, low - high)), text)
    label = (
        f"Bus bandwidth against message size: {len(points)} sizes, "
        f"at most {significant_digits_text(top[1])} GB/s at {bytes_text(top[0])}; the table has every number."
    )
    return replace(
        _chart_by_size("Bus bandwidth", "GB/s", label, [("busbw", "", points)], up),
        band=band,
        gate=(pixels_text(_y_pixels(up, gate)), f"gate {significant_digits_text(gate)} GB/s")
        if gate and gate > 0
        else None,
    )


def overlay_chart(runs: Sequence[Sequence[SizeRow]], names: Sequence[str]) -> Chart | None:
    """Bus bandwidth of two runs in one chart."""
    points = [[(row.size, row.busbw) for row in rows if row.busbw and 0 < row.busbw < 1e9] for rows in runs]
    every = [value for of in points for _, value in of]
    if not every:
        return None
    label = f"Bus bandwidth against message size of {' and '.join(names)}; the table has every number."
    lines = list(zip(names, ("", "second"), points, strict=True))
    return _chart_by_size("Bus bandwidth", "GB/s", label, lines, scale_around(every))


def _time_chart(rows: Sequence[SizeRow]) -> Chart | None:
    kinds = [
        (name, kind, [(row.size, value) for row in rows if (value := getattr(row, key)) and 0 < value < 1e15])
        for name, kind, key in (("p50", "", "p50_us"), ("p99", "second", "p99_us"))
    ]
    values = [value for _, _, points in kinds for _, value in points]
    if not values:
        return None
    label = (
        f"Time against message size: from {_microseconds_text(min(values))} to "
        f"{_microseconds_text(max(values))}; the table has every number."
    )
    return _chart_by_size(
        "Time of one AllReduce",
        "p50 and p99",
        label,
        kinds,
        scale_around(values),
        say=_microseconds_text,
        mark=_microseconds_text,
    )


def _chart_by_size(
    title: str,
    unit: str,
    label: str,
    lines: Sequence[SeriesPoints],
    up: Scale,
    *,
    say: NumberFormat = lambda busbw: f"{significant_digits_text(busbw)} GB/s",
    mark: NumberFormat = significant_digits_text,
) -> Chart:
    """Values against message sizes in bytes, both on logarithmic scales."""
    sizes = [size for _, _, points in lines for size, _ in points]
    across = Scale(min(sizes), max(sizes), log=True)
    marks = axis_ticks(across, _thinned_sizes(sorted(set(sizes))), bytes_text)
    return draw_chart(Chart(title, unit, label, marks), lines, across, up, where=bytes_text, say=say, mark=mark)


def draw_chart(
    chart: Chart,
    lines: Sequence[SeriesPoints],
    across: Scale,
    up: Scale,
    *,
    where: NumberFormat,
    say: NumberFormat,
    mark: NumberFormat = significant_digits_text,
) -> Chart:
    """The chart with its lines and its scale at the side. `where` and `say` make texts of the two values of a point,
    `mark` makes the text of a value beside the scale, with one digit."""
    series = []
    for name, kind, points in lines:
        places = [
            (percent_text(across.part(x)), pixels_text(_y_pixels(up, y)), f"{where(x)}: {name} {say(y)}")
            for x, y in points
        ]
        segments = tuple((*one[:2], *other[:2]) for one, other in itertools.pairwise(places))
        series += [Series(name, kind, segments, tuple(places))] * bool(places)
    marks = tuple((pixels_text(_y_pixels(up, value)), mark(value, 1)) for value in decimal_ticks(up))
    return replace(chart, series=tuple(series), up=marks)


def _y_pixels(up: Scale, value: float) -> float:
    return (1 - up.part(value)) * CHART_HEIGHT_PIXELS


def _thinned_sizes(sizes: Sequence[float]) -> list[float]:
    """At most about seven of the sizes, which are in order; the first and the last are among them."""
    step = max(1, -(-(len(sizes) - 1) // 6))
    chosen = list(sizes[::step])
    if sizes[-1] not in chosen:
        chosen = [*(chosen if len(sizes) - 1 - sizes.index(chosen[-1]) > step // 2 else chosen[:-1]), sizes[-1]]
    return chosen


def axis_ticks(across: Scale, values: Sequence[float], say: NumberFormat) -> tuple[Tick, ...]:
    """A mark for each of these values, which are in order."""
    last = len(values) - 1
    anchors = ["middle"] if not last else ["start", *["middle"] * (last - 1), "end"]
    return tuple(
        Tick(percent_text(across.part(value)), say(value), anchor, odd=at % 2 == 1 and at != last)
        for at, (value, anchor) in enumerate(zip(values, anchors, strict=True))
    )


def _microseconds_text(us: float, digits: int = 3) -> str:
    """Microseconds in the unit that reads best."""
    if us < 1000:
        return f"{significant_digits_text(us, digits)} µs"
    return (
        f"{significant_digits_text(us / 1e3, digits)} ms"
        if us < 1e6
        else f"{significant_digits_text(us / 1e6, digits)} s"
    )


LINK_LEVEL_BOUNDS = (0.5, 0.75, 0.9, 0.97)
"""Parts of the median: a link below the first has level 0, a link above the last has level 4."""

LEVELS = (
    "less than half of the median",
    "50 to 75 % of the median",
    "75 to 90 % of the median",
    "90 to 97 % of the median",
    "as fast as the median",
)
MAX_TABLE_NODES = 16
"""Up to so many nodes, the cells show numbers."""

MAX_CELL_NODES = 64
"""Up to so many nodes, each pair has a cell; of more, the worst link between two groups stands for all between them."""

MAX_NODE_GROUPS = 24
MAX_SLOWEST_LINKS = 40
"""Links in the table of the slowest."""


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """The best that was measured from `source` to `target`, in Gbit/s; latency in microseconds, None where not
    measured."""

    source: str
    target: str
    gbps: float
    us: float | None
    both_gbps: float | None
    part: float  # `gbps` divided by the median of all links


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a heat map. `level` None: not measured. `text` is in the cell, `title` says it in full."""

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
    """The heat map of a stage; None if the stage measured no link."""
    links = measured_links(stage)
    if not links:
        return None
    named = {name for pair in links for name in pair}
    names = [name for name in stage.started.nodes if name in named]
    names += sorted(named - set(names))
    slow = sorted(
        (link for link in links.values() if link_level(link.part) < len(LINK_LEVEL_BOUNDS)), key=lambda link: link.gbps
    )
    groups = [(name, [name]) for name in names]
    if len(names) > MAX_CELL_NODES:
        groups = node_groups(names, recorded.plan)
    kind = "groups" if len(names) > MAX_CELL_NODES else "table" if len(names) <= MAX_TABLE_NODES else "cells"
    return HeatMap(
        stage=stage.name,
        names=tuple(name for name, _ in groups),
        rows=_heat_map_rows(groups, links),
        kind=kind,
        median=statistics.median(link.gbps for link in links.values()),
        count=len(links),
        nodes=len(names),
        worst=tuple(slow[:MAX_SLOWEST_LINKS]),
    )


def measured_links(stage: StageRecord) -> dict[NodePair, MeasuredPair]:
    """The fastest measurement of each direction."""
    best = fastest_links(stage.outcomes)
    median = statistics.median(one.gbps for one in best.values()) if best else 1.0
    return {pair: MeasuredPair(*pair, one.gbps, one.us, one.both_gbps, one.gbps / median) for pair, one in best.items()}


def link_level(part: float) -> int:
    return sum(part >= bound for bound in LINK_LEVEL_BOUNDS)


def node_groups(names: Sequence[str], plan: Mapping[str, object]) -> list[tuple[str, list[str]]]:
    """The nodes in named groups: by the leaf or rack that the inventory gives, or else neighbours, in at most
    MAX_NODE_GROUPS groups."""
    listed = plan.get("nodes")
    facts = {one.get("name"): one for one in listed if isinstance(one, Mapping)} if isinstance(listed, list) else {}
    for key in ("leaf", "rack"):
        by = values_by_key((str(facts.get(name, {}).get(key) or ""), name) for name in names)
        if "" not in by and 1 < len(by) <= 2 * MAX_NODE_GROUPS:
            return list(by.items())
    size = math.ceil(len(names) / MAX_NODE_GROUPS)
    rows = [list(names[at : at + size]) for at in range(0, len(names), size)]
    return [(fold(row), row) for row in rows]


def _heat_map_rows(
    groups: Sequence[tuple[str, Sequence[str]]], links: Mapping[NodePair, MeasuredPair]
) -> tuple[tuple[Cell, ...], ...]:
    worst = slowest_links_between([members for _, members in groups], links)
    return tuple(
        tuple(_heat_map_cell(worst.get((row, column))) for column in range(len(groups))) for row in range(len(groups))
    )


def _heat_map_cell(link: MeasuredPair | None) -> Cell:
    if link is None:
        return Cell(None, "", "not measured")
    delay = "" if link.us is None else f", {link.us:g} µs"
    title = f"{link.source} → {link.target}: {link.gbps:.3g} Gbit/s, {link.part:.0%} of the median{delay}"
    return Cell(link_level(link.part), f"{link.gbps:.3g}", title)
