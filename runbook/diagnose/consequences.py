"""Which causes only follow from others: the root is told first, and what follows from it is folded under it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache

from runbook.causes.catalogue import CONSEQUENCES


def in_order(causes: Iterable[str]) -> list[str]:
    """Each cause once: what follows from another one that is there comes after it, mere consequences last; causes that
    have nothing to do with each other stay as they are."""
    left = list(dict.fromkeys(causes))
    ordered: list[str] = []
    while left:
        free = [cause for cause in left if root_of(cause, left) is None]
        ordered.append((free or left)[0])  # two that name each other follow from neither
        left.remove(ordered[-1])
    return ordered


def root_of(cause: str, among: Collection[str]) -> str | None:
    """The first of the causes that are there from which this one follows; None if it stands by itself, or if two could
    each be the other's root."""
    others = [other for other in among if other != cause and other not in CONSEQUENCES]
    if cause in CONSEQUENCES:
        return others[0] if others else None
    return next((other for other in others if other in _origins(cause) and cause not in _origins(other)), None)


@cache
def _origins(cause: str) -> frozenset[str]:
    """What the rules for logs say of it: one knowledge for both."""
    from runbook.diagnose.catalogue import RULES  # only something that failed is worth the time this takes

    return frozenset(origin for rule in RULES if rule.cause == cause for origin in rule.follows)
