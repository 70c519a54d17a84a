"""Draws in characters what stages measured: the bandwidth table, a line of bars, the map of links."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from runbook.model.node_ranges import fold
from runbook.model.safe_text import pad_to_width, printable_line, terminal_columns
from runbook.model.units import bytes_text, link_rate_text, significant_digits_text
from runbook.model.verdict import Outcome
from runbook.report.run_record import LinkSpeed, fastest_links, slowest_links_between

# title, unit, key of the row, width, significant digits (0: write it as it is)
RESULT_COLUMNS = (
    ("size", "(B)", "size", 12, 0),
    ("count", "(elements)", "count", 13, 0),
    ("type", "", "type", 8, 0),
    ("redop", "", "redop", 7, 0),
    ("time", "(us)", "time_us", 10, 4),
    ("algbw", "(GB/s)", "algbw", 10, 3),
    ("busbw", "(GB/s)", "busbw", 10, 3),
    ("#wrong", "", "wrong", 8, 0),
    ("p50", "(us)", "p50_us", 10, 4),
    ("p99", "(us)", "p99_us", 10, 4),
)
NARROW_RESULT_COLUMNS = RESULT_COLUMNS[:8]


def table_header(width: int | None) -> list[str]:
    """Two header lines, which parsers of nccl-tests read as comments."""
    columns = _result_columns(width)
    titles = "".join(title.rjust(cells) for title, _, _, cells, _ in columns)
    units = "".join(unit.rjust(cells) for _, unit, _, cells, _ in columns)
    return ["#" + titles[1:], "#" + units[1:].rstrip()]


def table_row(values: Mapping[str, object], width: int | None) -> str:
    """The row of one message size; a missing value reads `-`, and small bandwidths keep three digits."""
    return "".join(
        _result_cell(values.get(key), digits).rjust(cells) for _, _, key, cells, digits in _result_columns(width)
    )


def _result_columns(width: int | None) -> tuple[tuple[str, str, str, int, int], ...]:
    whole = sum(cells for _, _, _, cells, _ in RESULT_COLUMNS)
    return RESULT_COLUMNS if width is None or width >= whole else NARROW_RESULT_COLUMNS


def _result_cell(value: object, digits: int) -> str:
    if value is None:
        return " -"
    if digits and isinstance(value, int | float):
        return " " + significant_digits_text(value, digits)
    return " " + printable_line(str(value))


BAR_CHARACTERS = "▁▂▃▄▅▆▇█"
SHADE_CHARACTERS = "░▒▓█"
"""Shades of links: the slower, the darker."""

SHADE_BOUNDS = (0.9, 0.75, 0.5)
"""Parts of the median: a link that is below the first bound has the second shade, and so on."""

MAX_MAP_ROWS = 24
"""Rows of a map; if there are more nodes, neighbours share a row, and the slowest link between two groups stands for
all."""

MAX_MAP_NAME_CELLS = 16


def sparkline(values: Sequence[float]) -> str:
    """One bar a value, by its logarithm: bandwidths of small and large messages are far apart. Empty if no value is
    above 0."""
    known = [value for value in values if value > 0 and math.isfinite(value)]
    if not known:
        return ""
    low, high = math.log(min(known)), math.log(max(known))
    return "".join(_bar_character(value, low, high) for value in values)


def _bar_character(value: float, low: float, high: float) -> str:
    if not value > 0 or not math.isfinite(value):
        return " "
    part = (math.log(value) - low) / (high - low) if high > low else 1.0
    return BAR_CHARACTERS[round(part * (len(BAR_CHARACTERS) - 1))]


def bandwidth_line(rows: Sequence[Mapping[str, object]]) -> str:
    """`busbw by size ▁▃▆█ 1 KiB … 1 GiB`; empty for fewer than three sizes."""
    points = [
        (float(size), float(busbw))
        for row in rows
        if isinstance(size := row.get("size"), int | float) and isinstance(busbw := row.get("busbw"), int | float)
        if _is_drawable(size) and _is_drawable(busbw)
    ]
    if len(points) < 3:
        return ""
    first, last = (bytes_text(points[place][0]) for place in (0, -1))
    return f"busbw by size {sparkline([busbw for _, busbw in points])} {first} … {last}"


def links_map(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The map of links: a row for each sender, a column for each receiver, in the order of the outcomes; nothing if no
    link was measured."""
    import statistics  # slow to load, and only runs with `links` need it

    best = fastest_links(outcomes)
    named = {name for pair in best for name in pair}
    names = [outcome.node for outcome in outcomes if outcome.node in named]
    if len(names) < 2 or len(best) < 2:
        return
    size = math.ceil(len(names) / MAX_MAP_ROWS)
    groups = [names[at : at + size] for at in range(0, len(names), size)]
    worst = slowest_links_between(groups, best)
    median = statistics.median(link.gbps for link in best.values())
    labels = [printable_line(fold(group)) for group in groups]
    wide = min(MAX_MAP_NAME_CELLS, max(map(terminal_columns, labels)))
    yield f"links, rows send to columns{', the slowest of each group' if size > 1 else ''}: {_shade_legend(median)}"
    for row, label in enumerate(labels):
        shades = "".join(
            (" " if row == column and size == 1 else _shade_character(worst.get((row, column)), median)) * 2
            for column in range(len(groups))
        )
        yield f"{pad_to_width(_cut_to_width(label, wide), wide)}  {shades.rstrip()}"


def _shade_legend(median: float) -> str:
    shades = [
        f"{shade * 2} {text}" for shade, text in zip(SHADE_CHARACTERS, ("usual", "<90%", "<75%", "<50%"), strict=True)
    ]
    return f"{', '.join(shades)} of the median {link_rate_text(median)}"


def _shade_character(link: LinkSpeed | None, median: float) -> str:
    return "·" if link is None else SHADE_CHARACTERS[sum(link.gbps < bound * median for bound in SHADE_BOUNDS)]


def _cut_to_width(text: str, width: int) -> str:
    while terminal_columns(text) > width:
        text = text[:-1]
    return text


def _is_drawable(value: float) -> bool:
    return not isinstance(value, bool) and 0 < value < 1e18
