"""Names and addresses back into ranges that `ranges.expand` pairs one by one: `gn[01-04]` with `10.0.1.[1-4]`.

`model.fold` writes sets for people. Here order is kept, because nodes stand in rank order and addresses follow names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

_DIGITS = re.compile(r"([0-9]{1,18})")
Row = tuple[str, ...]


class _Box(NamedTuple):
    """Equal texts around fields that vary; it stands for the product of its fields, the leftmost slowest."""

    texts: Row
    fields: tuple[tuple[str, ...], ...]
    size: int


def folded(names: Sequence[str]) -> list[str]:
    """Expressions that `expand`, one after the other, turns back into exactly these names in this order."""
    return [_written(box) for box in _boxes(names)]


def folded_rows(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Rows of (name, address, …) as rows of expressions, each with how many it stands for.

    A column that says the same in every row is left as it is: one address may hold for a whole range.
    """
    if len(rows) <= 1:
        return [(row, 1) for row in rows]
    written: list[str] = []
    for column in zip(*rows, strict=True):
        if len(set(column)) == 1:
            written.append(column[0])
            continue
        boxes = _boxes(column)
        if len(boxes) > 1:
            return _cut(rows, boxes)
        written.append(_written(boxes[0]))
    return [(tuple(written), len(rows))]


def _cut(rows: Sequence[Row], boxes: list[_Box]) -> list[tuple[Row, int]]:
    found: list[tuple[Row, int]] = []
    at = 0
    for box in boxes:
        found += folded_rows(rows[at : at + box.size])
        at += box.size
    return found


def _boxes(names: Sequence[str]) -> list[_Box]:
    """Neighbours that differ in one field only, merged; the last field first, so that the order stays."""
    boxes: list[_Box] = []
    for texts, alike in groupby(map(_split, names), key=lambda parts: parts[0]):
        family = [_Box(texts, tuple((value,) for value in values), 1) for _, values in alike]
        for field in reversed(range(len(texts) - 1)):
            family = _merged(family, field)
        boxes += family
    return boxes


def _split(name: str) -> tuple[Row, Row]:
    parts = _DIGITS.split(name)
    return tuple(parts[0::2]), tuple(parts[1::2])


def _merged(boxes: list[_Box], field: int) -> list[_Box]:
    def rest(box: _Box) -> object:
        return box.fields[:field], box.fields[field + 1 :]

    merged = []
    for _, alike in groupby(boxes, key=rest):
        group = list(alike)
        values = tuple(value for box in group for value in box.fields[field])
        fields = (*group[0].fields[:field], values, *group[0].fields[field + 1 :])
        merged.append(_Box(group[0].texts, fields, sum(box.size for box in group)))
    return merged


def _written(box: _Box) -> str:
    text = box.texts[0]
    for values, following in zip(box.fields, box.texts[1:], strict=True):
        text += (_ranges(values) if len(values) > 1 else values[0]) + following
    return text


def _ranges(values: tuple[str, ...]) -> str:
    """`[01-04,07]`: a first number that begins with 0 says how wide all of its range are."""
    runs: list[list[str]] = []
    for value in values:
        if runs and value == _after(runs[-1][-1], runs[-1][0]):
            runs[-1].append(value)
        else:
            runs.append([value])
    return "[" + ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs) + "]"


def _after(value: str, first: str) -> str:
    return str(int(value) + 1).zfill(len(first) if first.startswith("0") else 0)
