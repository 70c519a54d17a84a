"""Fold node names into a nodeset: `node01 … node16` reads `node[01-16]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

NameParts = tuple[str, ...]
FieldValueSets = tuple[frozenset[str], ...]  # one set of values for each field; the box means their product

# A field is a run of digits, or one letter after a separator at the very end (`node-a`).
NAME_FIELD = re.compile(r"([0-9]{1,18}|(?<=[-_.])[a-z](?=\Z))")

MAX_NAME_FIELDS = 32
"""A name with more fields is not folded, since the cost grows with the square of their number."""


def fold(names: Iterable[str]) -> str:
    """One nodeset that names every node once, in the order of first appearance, and names no other node; numbers keep
    their leading zeros."""
    families: dict[NameParts, list[NameParts]] = {}
    for name in dict.fromkeys(names):
        texts, values = _split_name_fields(name)
        families.setdefault(texts, []).append(values)
    return ",".join(
        _nodeset_of_box(texts, box) for texts, members in families.items() for box in _merged_boxes(members)
    )


def _split_name_fields(name: str) -> tuple[NameParts, NameParts]:
    """A name's fixed texts, followed by each field's kind (`#` digits, `@` letter); and its fields' values. A name that
    could be read as a nodeset itself has no fields."""
    if set(name) & set("[],"):
        return (name,), ()
    parts = NAME_FIELD.split(name)
    if len(parts) > 2 * MAX_NAME_FIELDS:
        return (name,), ()
    values = tuple(parts[1::2])
    kinds = tuple("#" if value.isdigit() else "@" for value in values)
    return (*parts[0::2], *kinds), values


def _merged_boxes(members: list[NameParts]) -> list[FieldValueSets]:
    """The members as boxes: those that differ in one field only are merged, the last field first."""
    boxes: list[FieldValueSets] = [tuple(frozenset((value,)) for value in member) for member in members]
    for field in reversed(range(len(members[0]))):
        merged: dict[FieldValueSets, set[str]] = {}
        for box in boxes:
            merged.setdefault(box[:field] + box[field + 1 :], set()).update(box[field])
        boxes = [(*rest[:field], frozenset(values), *rest[field:]) for rest, values in merged.items()]
    return boxes


def _nodeset_of_box(texts: NameParts, box: FieldValueSets) -> str:
    written = texts[0]
    for text, values in zip(texts[1:], box, strict=False):
        written += (_bracketed_ranges(values) if len(values) > 1 else next(iter(values))) + text
    return written


def _bracketed_ranges(values: frozenset[str]) -> str:
    """The values as `[1,3-5]`; all numbers of a range are padded with zeros to the width of its first."""
    left = dict.fromkeys(sorted(values, key=_field_sort_key))
    runs: list[str] = []
    while left:
        first = last = next(iter(left))
        del left[first]
        while (following := _next_field_value(last, len(first))) in left:
            last = following
            del left[last]
        runs.append(first if first == last else f"{first}-{last}")
    return "[" + ",".join(runs) + "]"


def _field_sort_key(value: str) -> tuple[int, int, str]:
    return (int(value), len(value), value) if value.isdigit() else (0, 0, value)


def _next_field_value(value: str, width: int) -> str:
    return str(int(value) + 1).zfill(width) if value.isdigit() else chr(ord(value) + 1)
