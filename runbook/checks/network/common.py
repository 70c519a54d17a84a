"""Which node is common to what goes wrong between pairs of nodes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping


def culprits(pairs: Iterable[frozenset[str]]) -> Mapping[str, list[str]]:
    """Nodes to blame, each with the other ends of its bad pairs.

    A node that is part of more bad pairs than others is what they have in common. Where nothing sets one apart (two
    nodes, one pair, or everybody alike) both ends of a pair are named.
    """
    left = set(pairs)
    blamed: dict[str, list[str]] = defaultdict(list)
    while left:
        peers: dict[str, list[str]] = defaultdict(list)
        for pair in left:
            one, other = sorted(pair)
            peers[one].append(other)
            peers[other].append(one)
        most = max(len(found) for found in peers.values())
        chosen = [name for name, found in peers.items() if len(found) == most]
        if most < 2 or len(chosen) == len(peers):
            chosen = list(peers)
        for name in chosen:
            blamed[name] += sorted(peers[name])
        left = {pair for pair in left if not pair & set(chosen)}
    return blamed


def ends(name: str, peers: Iterable[str]) -> str:
    """`node-a and node-b`, or `node-a and each of node-b and node-c`: the ends of what is wrong between them."""
    others = list(peers)
    return f"{name} and {'each of ' if len(others) > 1 else ''}{listed(others)}"


def listed(names: Iterable[str]) -> str:
    """`node-a, node-b and node-c`; of very many the first ones and their number."""
    words = list(names)
    if len(words) > 6:
        return f"{', '.join(words[:4])} and {len(words) - 4} more"
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))
