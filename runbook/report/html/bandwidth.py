"""AllReduce as charts: bus bandwidth and time against message size, both axes logarithmic. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runbook.model.units import bytes_text, significant
from runbook.report.html.recorded import Recorded, number
from runbook.report.html.scales import Scale, Tick, around, decimal_ticks, percent, pixels
from runbook.report.record import StageRecord

HEIGHT = 230
"""Pixels of a chart."""


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One size. Microseconds, GB/s (10^9 bytes); None where it was not told."""

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


@dataclass(frozen=True, slots=True)
class Chart:
    """`band` and `gate` are drawn behind: (y, height, name) and (y, name)."""

    title: str
    unit: str
    label: str  # what it shows, for those who do not see it
    across: tuple[Tick, ...]
    up: tuple[tuple[str, str], ...]  # (y, text)
    series: tuple[Series, ...]
    band: tuple[str, str, str] | None = None
    gate: tuple[str, str] | None = None
    height: int = HEIGHT


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that one AllReduce stage measured. `gate`, `normal`: GB/s at the largest size."""

    stage: str
    rows: tuple[SizeRow, ...]
    charts: tuple[Chart, ...]
    gate: float | None
    normal: tuple[float, float] | None
    source: str


def sweeps(recorded: Recorded) -> list[Sweep]:
    return [found for stage in recorded.record.stages if (found := sweep(recorded, stage))]


def sweep(recorded: Recorded, stage: StageRecord) -> Sweep | None:
    """None where the stage measured no size."""
    rows = rows_of(recorded, stage)
    if not rows:
        return None
    gate, normal, source = _limits(stage)
    charts = [_bandwidth(rows, gate, normal), _time(rows)]
    return Sweep(stage.name, rows, tuple(chart for chart in charts if chart), gate, normal, source)


def rows_of(recorded: Recorded, stage: StageRecord) -> tuple[SizeRow, ...]:
    """As they were told while it ran, else as its outcomes have them."""
    told: Sequence[object] = recorded.told(stage).rows
    if not told:
        listed = (outcome.metrics.get("rows") for outcome in stage.outcomes)
        told = next((rows for rows in listed if isinstance(rows, list) and rows), [])
    return tuple(row for values in told if isinstance(values, Mapping) and (row := _row(values)))


def _row(values: Mapping[str, object]) -> SizeRow | None:
    size = number(values.get("size"))
    if size is None or not 0 < size < 1e18:
        return None
    names = ("time_us", "algbw", "busbw", "wrong", "p50_us", "p99_us")
    return SizeRow(size, *(number(values.get(name)) for name in names))


def _limits(stage: StageRecord) -> tuple[float | None, tuple[float, float] | None, str]:
    for outcome in stage.outcomes:
        gate = number(outcome.metrics.get("gate_busbw_gbytes"))
        span = outcome.metrics.get("expected_busbw_gbytes")
        if isinstance(span, list) and len(span) == 2:
            low, high = number(span[0]), number(span[1])
            if low and low > 0:
                normal = (low, high if high and high > low else low)
                return gate, normal, str(outcome.metrics.get("expected_source") or "")
        if gate:
            return gate, None, ""
    return None, None, ""


def _bandwidth(rows: Sequence[SizeRow], gate: float | None, normal: tuple[float, float] | None) -> Chart | None:
    points = [(row.size, row.busbw) for row in rows if row.busbw and 0 < row.busbw < 1e9]
    if not points:
        return None
    limits = [limit for limit in (gate, *(normal or ())) if limit and 0 < limit < 1e9]
    up = around([*(value for _, value in points), *limits])
    across = _sizes([size for size, _ in points])
    top = max(points, key=lambda point: point[1])
    band = None
    if normal:
        high, low = _y(up, normal[1]), _y(up, normal[0])
        high_text = f" to {significant(normal[1])}" if normal[1] > normal[0] else ""
        text = f"normal here: {significant(normal[0])}{high_text} GB/s"
        band = (pixels(high), pixels(max(2.0, low - high)), text)
    return Chart(
        "Bus bandwidth",
        "GB/s",
        f"Bus bandwidth against message size: {len(points)} sizes, at most {significant(top[1])} GB/s at {bytes_text(top[0])}; "
        "the table has every number.",
        _ticks(across, [size for size, _ in points]),
        tuple((pixels(_y(up, value)), significant(value, 1)) for value in decimal_ticks(up)),
        (_series("busbw", "", points, across, up, _gigabytes),),
        band,
        (pixels(_y(up, gate)), f"gate {significant(gate)} GB/s") if gate and gate > 0 else None,
    )


def overlay(runs: Sequence[Sequence[SizeRow]], names: Sequence[str]) -> Chart | None:
    """Bus bandwidth of two runs in one chart."""
    points = [[(row.size, row.busbw) for row in rows if row.busbw and 0 < row.busbw < 1e9] for rows in runs]
    every = [point for of in points for point in of]
    if not every:
        return None
    up, across = around([value for _, value in every]), _sizes([size for size, _ in every])
    return Chart(
        "Bus bandwidth",
        "GB/s",
        f"Bus bandwidth against message size of {' and '.join(names)}; the table has every number.",
        _ticks(across, [size for size, _ in every]),
        tuple((pixels(_y(up, value)), significant(value, 1)) for value in decimal_ticks(up)),
        tuple(
            _series(name, kind, of, across, up, _gigabytes)
            for name, kind, of in zip(names, ("", "second"), points, strict=True)
        ),
    )


def _time(rows: Sequence[SizeRow]) -> Chart | None:
    kinds = [
        (name, kind, [(row.size, value) for row in rows if (value := getattr(row, key)) and 0 < value < 1e15])
        for name, kind, key in (("p50", "", "p50_us"), ("p99", "second", "p99_us"))
    ]
    values = [value for _, _, points in kinds for _, value in points]
    if not values:
        return None
    up, across = around(values), _sizes([row.size for row in rows])
    return Chart(
        "Time of one AllReduce",
        "p50 and p99",
        f"Time against message size: from {_micro(min(values))} to {_micro(max(values))}; the table has every number.",
        _ticks(across, [row.size for row in rows]),
        tuple((pixels(_y(up, value)), _micro(value, 1)) for value in decimal_ticks(up)),
        tuple(_series(name, kind, points, across, up, _micro) for name, kind, points in kinds if points),
    )


def _sizes(sizes: Sequence[float]) -> Scale:
    return Scale(min(sizes), max(sizes), log=True)


def _y(up: Scale, value: float) -> float:
    return (1 - up.part(value)) * HEIGHT


def _ticks(across: Scale, sizes: Sequence[float]) -> tuple[Tick, ...]:
    """At most about seven sizes, the first and the last among them."""
    listed = sorted(set(sizes))
    step = max(1, -(-(len(listed) - 1) // 6))
    chosen = listed[::step]
    if listed[-1] not in chosen:
        chosen = [*(chosen if len(listed) - 1 - listed.index(chosen[-1]) > step // 2 else chosen[:-1]), listed[-1]]
    last = len(chosen) - 1
    return tuple(
        Tick(
            percent(across.part(size)),
            bytes_text(size),
            "middle" if len(chosen) == 1 else "start" if at == 0 else "end" if at == last else "middle",
            odd=at % 2 == 1 and at != last,
        )
        for at, size in enumerate(chosen)
    )


def _series(
    name: str, kind: str, points: Sequence[tuple[float, float]], across: Scale, up: Scale, say: Callable[[float], str]
) -> Series:
    places = [(percent(across.part(size)), pixels(_y(up, value))) for size, value in points]
    return Series(
        name,
        kind,
        tuple((*one, *other) for one, other in itertools.pairwise(places)),
        tuple(
            (x, y, f"{bytes_text(size)}: {name} {say(value)}")
            for (x, y), (size, value) in zip(places, points, strict=True)
        ),
    )


def _gigabytes(busbw: float) -> str:
    return f"{significant(busbw)} GB/s"


def _micro(us: float, digits: int = 3) -> str:
    """Microseconds in the unit that reads best."""
    if us < 1000:
        return f"{significant(us, digits)} µs"
    return f"{significant(us / 1e3, digits)} ms" if us < 1e6 else f"{significant(us / 1e6, digits)} s"
