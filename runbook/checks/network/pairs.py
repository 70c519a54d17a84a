"""Which pairs of nodes are tried, and which node the bad pairs have in common.

With few nodes all pairs are tried; with many, so many that each node is met by nodes of every kind. N nodes have about
N² pairs, but N log N dials answer the same question: which node is closed to the others. The inventory's order makes a
ring; each node tries the nodes at distances of powers of two around it, and the master. Pairs across subnets and racks
are added, since what stands between those stops no pair inside. Both directions of a pair are tried."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations

from runbook.checks.context import Context
from runbook.checks.network.dial import numeric_node_address
from runbook.model.grouping import values_by_key
from runbook.model.node_ranges import fold
from runbook.model.units import name_list_text
from runbook.model.verdict import Finding

MAX_ALL_DIALLED_NODES = 16
"""Up to this many nodes, every pair is tried."""

MAX_GROUPS_PER_NODE = 8
"""Up to this many subnets, each node tries one node of each. With more, one pair of nodes crosses each two subnets."""

MAX_CROSSED_GROUPS = 128
"""With more groups than this, only some of them are crossed, evenly chosen."""

SUBNET_BITS = {4: 24, 6: 64}
"""The length of a subnet's prefix that is assumed, by IP version."""

MAX_PAIR_NEIGHBOURS = 3
"""How many other nodes of the far end's group each end of a failed pair tries in addition."""

MAX_ADDED_PAIRS = 2000
"""How many pairs are added around failed pairs, roughly."""


@dataclass(frozen=True)
class Pairs:
    """By node, its peers in the order in which they are tried. At any moment all nodes dial at the same distance around
    the ring, so that few nodes dial the same peer at a time."""

    peers: Mapping[str, tuple[str, ...]]

    @classmethod
    def every(cls, names: Sequence[str]) -> Pairs:
        """All pairs of these nodes, both directions."""
        return cls({name: (*names[at + 1 :], *names[:at]) for at, name in enumerate(names)})

    @classmethod
    def of(cls, names: Sequence[str], pairs: Iterable[tuple[str, str]]) -> Pairs:
        """These pairs of nodes, both directions."""
        place = {name: at for at, name in enumerate(names)}
        found: dict[str, set[str]] = defaultdict(set)
        for one, other in pairs:
            if one != other:
                found[one].add(other)
                found[other].add(one)
        count = len(names)
        return cls(
            {
                name: tuple(sorted(found[name], key=lambda peer: (place[peer] - at) % count))
                for at, name in enumerate(names)
            }
        )

    def __len__(self) -> int:
        return sum(map(len, self.peers.values()))

    def and_(self, more: Pairs) -> Pairs:
        """These pairs, and after them the further ones."""
        return Pairs({name: (*peers, *more.peers.get(name, ())) for name, peers in self.peers.items()})

    def note(self) -> str:
        """How many of all pairs were tried, in words; "" when all were."""
        every = len(self.peers) * (len(self.peers) - 1)
        return "" if len(self) >= every else f"{len(self):,} of {every:,} pairs; `pairs: all` tries every one"


def choose_pairs(
    names: Sequence[str], master: str, groupings: Sequence[Mapping[str, str]] = (), wanted: str = "auto"
) -> Pairs:
    """The pairs to try. `groupings`: mappings from nodes to their subnet, rack or another group that may be cut off as
    one."""
    if wanted == "all" or len(names) <= MAX_ALL_DIALLED_NODES:
        return Pairs.every(names)
    count = len(names)
    steps = [1 << power for power in range(count.bit_length()) if 1 << power <= count // 2]
    pairs = [(name, names[(at + step) % count]) for at, name in enumerate(names) for step in steps]
    pairs += [(name, master) for name in names]
    for grouping in groupings:
        pairs += _group_crossing_pairs(members_by_group(names, grouping))
    return Pairs.of(names, pairs)


def node_groupings(at: Context) -> list[Mapping[str, str]]:
    """Groupings of the nodes: by subnet, as far as their addresses show it, and by rack and leaf from the inventory. A
    grouping with only one group is left out."""
    numbers = {node.name: ipaddress.ip_address(numeric_node_address(at, node.name)) for node in at.nodes}
    subnets = {
        name: str(ipaddress.ip_network((address, SUBNET_BITS[address.version]), strict=False))
        for name, address in numbers.items()
    }
    racks = {node.name: f"rack {node.rack}" for node in at.nodes if node.rack}
    leaves = {node.name: f"leaf {node.leaf}" for node in at.nodes if node.leaf}
    return [grouping for grouping in (subnets, racks, leaves) if len(set(grouping.values())) > 1]


def members_by_group(names: Iterable[str], grouping: Mapping[str, str]) -> list[list[str]]:
    """The nodes of each group, for nodes that have one."""
    return list(values_by_key((grouping[name], name) for name in names if name in grouping).values())


def _group_crossing_pairs(groups: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """Pairs that cross each two groups. Member k of one group meets member k of the other, or the indexes are swapped,
    so that no node is everybody's partner. Groups of hardly more than one node each show nothing, so they give no
    pairs."""
    count = len(groups)
    if count < 2 or 2 * count > sum(map(len, groups)):
        return []
    if count <= MAX_GROUPS_PER_NODE:
        return [
            (name, there[at % len(there)])
            for here in groups
            for there in groups
            if there is not here
            for at, name in enumerate(here)
        ]
    groups = groups[:: -(-count // MAX_CROSSED_GROUPS)]
    return [
        (here[b % len(here)], there[a % len(there)])
        for a, here in enumerate(groups)
        for b, there in enumerate(groups[a + 1 :], a + 1)
    ]


def pairs_around_failures(
    tried: Pairs, failed: Iterable[tuple[str, str]], groupings: Sequence[Mapping[str, str]] = ()
) -> Pairs:
    """More pairs, which show whether a node, a link or the way between two groups is at fault: each end of a failed
    pair with other nodes, first those of the far end's group."""
    names = list(tried.peers)
    known = {name: set(peers) for name, peers in tried.peers.items()}
    more: list[tuple[str, str]] = []
    for one, other in dict.fromkeys(tuple(sorted(pair)) for pair in failed):
        for near, far in ((one, other), (other, one)):
            alike = [n for grouping in groupings for n in names if grouping.get(n) == grouping.get(far) is not None]
            fresh = [n for n in dict.fromkeys((*alike, *names)) if n not in known[near] and n not in (near, far)]
            for name in fresh[:MAX_PAIR_NEIGHBOURS]:
                known[near].add(name)
                known[name].add(near)
                more.append((near, name))
        if len(more) >= MAX_ADDED_PAIRS:
            break
    return Pairs.of(names, more)


def nodes_to_blame(pairs: Iterable[frozenset[str]]) -> Mapping[str, list[str]]:
    """Nodes to blame, each with the other ends of its bad pairs.

    The node in more bad pairs than any other is what they have in common. Where no node stands out (two nodes, one
    pair, or all nodes alike), both ends of a pair are named.
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


MIN_PAIRS_PER_EXCEPTION = 8
"""Of this many pairs between two groups that cannot talk, one pair may seem to be in order: packets get lost by
chance."""


@dataclass(frozen=True)
class BlamedNodes:
    """Nodes to blame, each with the other ends of its bad pairs. `between`: in words, the groups of nodes between which
    all bad pairs are, or "". In that case no single node is to blame, and all are named."""

    nodes: Mapping[str, list[str]]
    between: str = ""

    @classmethod
    def of(
        cls,
        bad: Iterable[frozenset[str]],
        tried: Iterable[frozenset[str]],
        groupings: Iterable[Mapping[str, str]],
    ) -> BlamedNodes:
        """The nodes to blame for the bad ones of the tried pairs."""
        bad, tried = set(bad), set(tried)
        nodes = nodes_to_blame(bad)
        if not any(len(peers) == len(bad) for peers in nodes.values()):  # else one node explains all bad pairs
            for grouping in groupings:
                if found := _blamed_groups(bad, tried, grouping):
                    return found
            if sides := _separated_sides(bad, tried):
                return _blamed_sides(*sides, bad, tried)
        return cls(nodes)

    @property
    def apart(self) -> str:
        """What all bad pairs have in common, in words, when that is not a node; else ""."""
        if not self.between:
            return ""
        says = f"what fails is nearly every pair between {self.between}, and no other"
        return f"{says}: look at what joins them, not at one node"

    def told(self, finding: Finding) -> Finding:
        """The finding, with what all bad pairs have in common at the end of its sentence."""
        return replace(finding, says=f"{finding.says}; {self.apart}") if self.apart else finding


def _blamed_groups(
    bad: set[frozenset[str]], tried: set[frozenset[str]], grouping: Mapping[str, str]
) -> BlamedNodes | None:
    """The nodes to blame when all bad pairs cross groups, and nearly all pairs between these groups are bad; else
    None."""

    def groups(pair: frozenset[str]) -> frozenset[str]:
        return frozenset(grouping.get(name, "") for name in pair)

    between = values_by_key((groups(pair), pair) for pair in bad)
    crossed = values_by_key((groups(pair), pair) for pair in tried)
    for couple, pairs in between.items():
        ends = members_by_group(frozenset().union(*pairs), grouping)
        if len(couple) < 2 or "" in couple or any(len(names) < 2 for names in ends):
            return None
        if (len(crossed[couple]) - len(pairs)) * MIN_PAIRS_PER_EXCEPTION > len(crossed[couple]):
            return None
    guilty = nodes_to_blame(between)
    nodes = values_by_key(
        (name, other)
        for pair in sorted(map(sorted, bad))
        for name, other in permutations(pair)
        if grouping[name] in guilty
    )
    return BlamedNodes(nodes, _separated_groups_text(guilty))


def _separated_groups_text(guilty: Mapping[str, Sequence[str]]) -> str:
    """Which groups cannot talk, in words that name each two groups once: `rack r0 and each of rack r1 and rack r2`."""
    told: set[frozenset[str]] = set()
    ways: list[str] = []
    for one in sorted(guilty):
        fresh = [other for other in sorted(guilty[one]) if frozenset((one, other)) not in told]
        told |= {frozenset((one, other)) for other in fresh}
        ways += [ends_text(one, fresh)] if fresh else []
    return ", and between ".join(ways)


def _separated_sides(bad: set[frozenset[str]], tried: set[frozenset[str]]) -> tuple[set[str], set[str]] | None:
    """Two sets of at least two nodes between which every tried pair is bad, while no other pair is; else None.
    Something separates them, whatever the inventory calls them."""
    far: dict[str, set[str]] = defaultdict(set)
    for pair in bad:
        for one, other in permutations(pair):
            far[one].add(other)
    side: dict[str, int] = {}
    todo = [min(far)] if far else []
    side.update(dict.fromkeys(todo, 0))
    while todo:
        here = todo.pop()
        for other in far[here] - side.keys():
            side[other] = 1 - side[here]
            todo.append(other)
    sides = {name for name, at in side.items() if at == 0}, {name for name, at in side.items() if at == 1}
    if len(side) < len(far) or min(map(len, sides)) < 2:
        return None
    crossing = {pair for pair in tried if pair <= side.keys() and len({side[name] for name in pair}) == 2}
    return sides if crossing == bad else None


def _blamed_sides(
    one: set[str], other: set[str], bad: Iterable[frozenset[str]], tried: Iterable[frozenset[str]]
) -> BlamedNodes:
    """The nodes to blame when two sides cannot talk: the few that are cut off from the many, or both sides if neither
    is small. A node that was not tried with the few belongs to the many."""
    few, many = sorted((one, other), key=len)
    everybody = frozenset().union(*tried)
    rest = everybody - few
    if all(pair in bad or not (pair & few and pair & rest) for pair in tried):
        many = set(rest)
    cut_off = 2 * len(few) < len(many)
    ways = (way for pair in sorted(map(sorted, bad)) for way in permutations(pair))
    nodes = values_by_key((name, peer) for name, peer in ways if name in few or not cut_off)
    if cut_off and many == rest:
        return BlamedNodes(nodes, f"{fold(sorted(few))} and the rest")
    return BlamedNodes(nodes, " and ".join(fold(sorted(side)) for side in sorted((few, many), key=min)))


def ends_text(name: str, peers: Iterable[str]) -> str:
    """The two ends of something wrong, in words: `node-a and node-b`, or `node-a and each of node-b and node-c`."""
    others = list(peers)
    return f"{name} and {'each of ' if len(others) > 1 else ''}{names_text(others)}"


MAX_LISTED_NAMES = 6
"""How many names are listed one by one."""


def names_text(names: Sequence[str]) -> str:
    """These names in words: `node-a and node-b`. More than MAX_LISTED_NAMES are shown as ranges, which leave none out:
    `node-[a-d,i-l]`."""
    return name_list_text(names) if len(names) <= MAX_LISTED_NAMES else fold(names)
