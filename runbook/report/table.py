"""The bandwidth table, with the columns that people know from nccl-tests first, then our percentiles."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.model.units import significant
from runbook.report.text import one_line

# title, unit, key of the row, width, significant digits (0: write it as it is)
COLUMNS = (
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
KNOWN = COLUMNS[:8]


def header(width: int | None) -> list[str]:
    """Two lines that nccl-tests' own readers take for a comment."""
    columns = _columns(width)
    titles = "".join(title.rjust(cells) for title, _, _, cells, _ in columns)
    units = "".join(unit.rjust(cells) for _, unit, _, cells, _ in columns)
    return ["#" + titles[1:], "#" + units[1:].rstrip()]


def row(values: Mapping[str, object], width: int | None) -> str:
    """One size; a value that is missing reads `-`, and small bandwidths keep three digits."""
    return "".join(_cell(values.get(key), digits).rjust(cells) for _, _, key, cells, digits in _columns(width))


def _columns(width: int | None) -> tuple[tuple[str, str, str, int, int], ...]:
    whole = sum(cells for _, _, _, cells, _ in COLUMNS)
    return COLUMNS if width is None or width >= whole else KNOWN


def _cell(value: object, digits: int) -> str:
    if value is None:
        return " -"
    if digits and isinstance(value, int | float):
        return " " + significant(value, digits)
    return " " + one_line(str(value))
