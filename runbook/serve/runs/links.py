"""What `check: links` measured of pairs of nodes, over the runs: the numbers, and one pair as a chart over time."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.model.units import significant
from runbook.report.html.bandwidth import HEIGHT, Chart, Series
from runbook.report.html.scales import Scale, Tick, around, decimal_ticks, percent, pixels
from runbook.serve.runs.folders import RunRow, Runs

Pair = tuple[str, str]
"""From and to, by name."""
MOST_TICKS = 5


@dataclass(frozen=True, slots=True)
class LinkMeasurement:
    """Of one pair in one run: Gbit/s, and microseconds there and back where they were told."""

    run: RunRow
    gbps: float
    us: float | None


def measured(runs: Runs, rows: Sequence[RunRow]) -> dict[Pair, list[LinkMeasurement]]:
    """By pair, in the order of these runs."""
    found: dict[Pair, list[LinkMeasurement]] = {}
    for row in rows:
        for stage in runs.document(row.id)["stages"] if row.verdict else ():
            for link in (stage.get("metrics") or {}).get("links", ()):
                if isinstance(link, dict) and isinstance(link.get("gbps"), int | float):
                    us = link.get("us")
                    one = LinkMeasurement(row, float(link["gbps"]), float(us) if isinstance(us, int | float) else None)
                    found.setdefault((str(link.get("from")), str(link.get("to"))), []).append(one)
    return found


def over_time(pair: Pair, found: dict[Pair, list[LinkMeasurement]]) -> Chart | None:
    """Both directions of a pair, the earliest run at the left; None where there is nothing to draw."""
    lines = [
        (f"{start} to {end}", kind, sorted(found.get((start, end), ()), key=lambda one: one.run.began))
        for (start, end), kind in ((pair, ""), (pair[::-1], "second"))
    ]
    points = [one for _, _, line in lines for one in line if 0 < one.gbps < 1e9]
    if not points:
        return None
    up = around([one.gbps for one in points])
    times = sorted({one.run.began for one in points})
    across = Scale(times[0], times[-1])

    def place(one: LinkMeasurement) -> tuple[str, str]:
        return percent(across.part(one.run.began)), pixels((1 - up.part(one.gbps)) * HEIGHT)

    series = []
    for name, kind, line in lines:
        drawn = [
            (*place(one), f"{_moment(one.run.began)}: {name} {significant(one.gbps)} Gbit/s")
            for one in line
            if one in points
        ]
        segments = tuple((x1, y1, x2, y2) for (x1, y1, _), (x2, y2, _) in itertools.pairwise(drawn))
        if drawn:
            series.append(Series(name, kind, segments, tuple(drawn)))
    low, high = min(one.gbps for one in points), max(one.gbps for one in points)
    return Chart(
        f"{pair[0]} and {pair[1]}",
        "Gbit/s",
        f"Bandwidth between {pair[0]} and {pair[1]} in {len(times)} runs: {significant(low)} to {significant(high)} Gbit/s; "
        "the table has every number.",
        _ticks(across, times),
        tuple((pixels((1 - up.part(value)) * HEIGHT), significant(value, 1)) for value in decimal_ticks(up)),
        tuple(series),
    )


def _ticks(across: Scale, times: Sequence[float]) -> tuple[Tick, ...]:
    """Moments of runs, the first and the last among them."""
    step = max(1, -(-(len(times) - 1) // (MOST_TICKS - 1)))
    chosen = list(dict.fromkeys([*times[:-1:step], times[-1]]))
    last = len(chosen) - 1
    return tuple(
        Tick(
            percent(across.part(at)),
            _moment(at),
            "middle" if not last else "start" if number == 0 else "end" if number == last else "middle",
            odd=0 < number < last,
        )
        for number, at in enumerate(chosen)
    )


def _moment(at: float) -> str:
    return time.strftime("%m-%d %H:%M", time.localtime(at))
