"""Groups values by their keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def values_by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """By each key, the list of its values; keys and values keep the order of `pairs`."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
