"""Which nodes are measured with each other: rounds in which each node has one partner. Pure: names in, pairs of names
out.

With up to eight nodes every pair meets. With more, the first round crosses every pair of leaves (node k of leaf a meets
node a of leaf k), and the second stays inside the leaves. After that, suspects meet proven partners and slow links are
measured again; idle nodes are paired too, so that every round loads the network as the first one did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runbook.checks.bandwidth.slow_links import Judgement, Link, Measured, Role

MAX_ALL_MEASURED_NODES = 8
"""With up to this many nodes every pair is measured."""
MAX_EXTRA_ROUNDS = 9
"""How many rounds may follow the first ones: what is not settled by then is reported as unsettled."""

MetCounts = Counter[frozenset[str]]
"""How many measurements there are of each pair of nodes."""

MAX_LEAF_PROBES = 2
"""How many other links between the same two leaves are measured beside a slow one."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two nodes that are measured with each other in one round. `asked`: the result is needed; otherwise the pair only
    keeps the network as busy as before. `long`: a transfer that takes three times as long. `alone`: no other node
    leaves or enters the leaves of the two meanwhile, so that a slow rate is the pair's own."""

    one: str
    other: str
    asked: bool = True
    long: bool = False
    alone: bool = False

    @property
    def links(self) -> tuple[Link, Link]:
        return Link(self.one, self.other), Link(self.other, self.one)


class Schedule:
    """Rounds until everything is settled. `leaf_of` names the switch of each node, where that is known."""

    def __init__(
        self, nodes: Sequence[str], leaf_of: Mapping[str, str] | None = None, *, every_pair: bool = False
    ) -> None:
        self.nodes = tuple(nodes)
        self.leaf_of = dict(leaf_of or {})
        self._groups = nodes_of_leaves(self.nodes, self.leaf_of)
        everybody = every_pair or len(nodes) <= MAX_ALL_MEASURED_NODES
        self._first = round_robin(self.nodes) if everybody else [leaf_crossing_pairs(self._groups)]
        self._inside = not everybody  # whether a second round is due, inside the groups

    def __len__(self) -> int:
        """The least number of rounds."""
        return len(self._first) + self._inside

    def round(
        self, number: int, judged: Judgement | None, measured: Sequence[Measured], again: Sequence[tuple[str, str]] = ()
    ) -> list[Meeting]:
        """The meetings of a round, counted from 0; empty when all is settled. `judged` is what `measured` proves so
        far; `again`: pairs that were measured and proved nothing."""
        if number < len(self._first):
            return [Meeting(*pair) for pair in self._first[number]]
        if judged is None or number >= len(self) + MAX_EXTRA_ROUNDS:
            return []
        met = Counter(frozenset(each.link.ends) for each in measured)
        booked = _Round(self.nodes, self.leaf_of)
        if not judged.common:
            self._book_confirmations(booked, judged, met)
        # Before the suspects: pairs that are known bring them nothing new.
        for one, other in again:
            booked.add(Meeting(one, other))
        if not judged.common:
            self._book_suspects(booked, judged, met)
        second = self._inside and number == len(self._first)
        if not booked.meetings and not second:
            return []
        # A node of unknown leaf may share an uplink with any other: beside its meeting alone, the idle nodes rest.
        if not any(each.alone and not {each.one, each.other} <= self.leaf_of.keys() for each in booked.meetings):
            for one, other in self._company(booked, met if second else Counter(), cross=not second):
                booked.add(Meeting(one, other, asked=second))
        return booked.meetings

    def _book_confirmations(self, booked: _Round, judged: Judgement, met: MetCounts) -> None:
        """Books the pairs that may confirm a suspicion, the most decisive first."""
        for leaf in judged.leaves_to_cross:
            for number, node in enumerate(self._of(leaf.name)):
                booked.with_partner(node, self._elsewhere(node, judged, leaf.role), met, long=True, last=number % 2 > 0)
        for leaf in judged.leaves_to_look_inside:
            for one, other in neighbour_pairs(self._of(leaf.name)):
                booked.add(Meeting(one, other))
        for end in judged.nodes_to_confirm:
            partners = self._proven(end.name, judged, [end.role])
            booked.with_partner(end.name, partners, met, long=True, alone=True)
        for link, long in judged.links_to_repeat:
            booked.add(Meeting(*link.ends, long=long, alone=long))
        for link in judged.links_to_surround:
            self._probe(booked, link, judged, met)

    def _book_suspects(self, booked: _Round, judged: Judgement, met: MetCounts) -> None:
        """Books proven partners for suspects, and for nodes that were not measured yet."""
        partners_of = {node: self._proven(node, judged, roles) for node, roles in judged.suspects.items()}
        for node in sorted(partners_of, key=lambda node: least_met(node, partners_of[node], met)):
            booked.with_partner(node, partners_of[node], met)
        for node in judged.untested(self.nodes):
            booked.with_partner(node, self._proven(node, judged, list(Role)), met)

    def _of(self, leaf: str) -> list[str]:
        """The nodes of a leaf."""
        return [node for node in self.nodes if self.leaf_of.get(node) == leaf]

    def _proven(self, node: str, judged: Judgement, roles: Sequence[Role]) -> list[str]:
        """Partners that are proven in the opposite roles, the best first: proven for most of these roles, then of the
        same leaf."""
        leaf = self.leaf_of.get(node)
        use = {other: sum(judged.proven(other, role.opposite) for role in roles) for other in self.nodes}
        found = [other for other in self.nodes if other != node and use[other]]
        return sorted(found, key=lambda other: (-use[other], self.leaf_of.get(other) != leaf))

    def _elsewhere(self, node: str, judged: Judgement, role: Role) -> list[str]:
        """Proven partners on other leaves."""
        leaf = self.leaf_of[node]
        partners = self._proven(node, judged, [role])
        return [other for other in partners if self.leaf_of.get(other) not in (leaf, None)]

    def _probe(self, booked: _Round, link: Link, judged: Judgement, met: MetCounts) -> None:
        """Books other links from the one leaf to the other, between proven nodes."""
        senders = [node for node in self._of(self.leaf_of[link.source]) if judged.proven(node, Role.SENDS)]
        receivers = [node for node in self._of(self.leaf_of[link.destination]) if judged.proven(node, Role.RECEIVES)]
        found = 0
        for one in senders:
            if found == MAX_LEAF_PROBES:
                return
            free = [other for other in receivers if booked.free(other) and frozenset((one, other)) not in met]
            if booked.free(one) and free:
                booked.add(Meeting(one, free[0]))
                found += 1

    def _company(self, booked: _Round, met: MetCounts, *, cross: bool) -> Iterator[tuple[str, str]]:
        """Pairs of idle nodes. With `cross`, half of the first round's pairs come first; then pairs inside the groups
        that have not met; then the rest in any order."""
        for one, other in self._first[0][::2] if cross else ():
            if booked.free(one) and booked.free(other):
                yield one, other
        left: list[str] = []
        for group in self._groups:
            waiting = [node for node in group if booked.free(node)]
            while len(waiting) > 1:
                one = waiting.pop(0)
                fresh = [each for each in waiting if frozenset((one, each)) not in met]
                if not fresh:
                    left.append(one)
                    continue
                waiting.remove(fresh[0])
                yield one, fresh[0]
            left += waiting
        yield from half_to_half_pairs(left)


class _Round:
    """Meetings of one round. No node is booked twice, and a leaf that a meeting has alone is not crossed by another
    meeting."""

    def __init__(self, nodes: Iterable[str], leaf_of: Mapping[str, str]) -> None:
        self._free = set(nodes)
        self._leaf_of = leaf_of
        self._crossed: set[str] = set()
        self._closed: set[str] = set()
        self.meetings: list[Meeting] = []

    def free(self, node: str) -> bool:
        return node in self._free

    def add(self, meeting: Meeting) -> None:
        """Books a meeting, unless it does not fit beside those that are booked."""
        one, other = meeting.one, meeting.other
        if one not in self._free or other not in self._free or one == other:
            return
        crossed = {self._leaf_of[node] for node in (one, other) if node in self._leaf_of}
        if len(crossed) > 1:
            if crossed & self._closed or (meeting.alone and crossed & self._crossed):
                return
            self._crossed |= crossed
            self._closed |= crossed if meeting.alone else set()
        self._free -= {one, other}
        self.meetings.append(meeting)

    def with_partner(
        self,
        node: str,
        partners: Sequence[str],
        met: MetCounts,
        *,
        long: bool = False,
        alone: bool = False,
        last: bool = False,
    ) -> None:
        """Books a meeting of the node with the free partner that it has met least often, the first of several. `last`:
        the partner sends first."""
        free = [other for other in partners if other in self._free]
        if node in self._free and free:
            partner = min(free, key=lambda other: met[frozenset((node, other))])
            one, other = (partner, node) if last else (node, partner)
            self.add(Meeting(one, other, long=long, alone=alone))


def least_met(node: str, partners: Iterable[str], met: MetCounts) -> int:
    """How often the node has met the one of these partners that it has met least often."""
    return min((met[frozenset((node, other))] for other in partners), default=0)


def nodes_of_leaves(nodes: Sequence[str], leaf_of: Mapping[str, str]) -> list[list[str]]:
    """The nodes by leaf. Nodes of unknown leaf are in blocks of √n, since neighbours in a list are often neighbours in
    the network."""
    known: dict[str, list[str]] = {}
    unknown = []
    for node in nodes:
        if node in leaf_of:
            known.setdefault(leaf_of[node], []).append(node)
        else:
            unknown.append(node)
    size = max(2, math.isqrt(len(nodes)))
    return [*known.values(), *(unknown[start : start + size] for start in range(0, len(unknown), size))]


def round_robin(nodes: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Every pair once, in rounds in which no node is in two pairs: the circle method. With an odd number of nodes, one
    rests in each round."""
    circle: list[str | None] = [*nodes, *([None] * (len(nodes) % 2))]
    found = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(one, other) for one, other in pairs if one is not None and other is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def leaf_crossing_pairs(grouped: Sequence[Sequence[str]]) -> list[tuple[str, str]]:
    """One round that crosses the groups: node k of group a meets node a of group k, so that every two groups meet, as
    far as a group has nodes. The other nodes meet a node of another group where that is possible. The first of a pair
    sends first: about half of each group does, so that an uplink has to carry about half of its nodes at a time."""
    largest = max(map(len, grouped), default=0)
    pairs = []
    for start in range(0, len(grouped), max(1, largest)):
        block = grouped[start : start + largest]
        for a, group in enumerate(block):
            for k in range(a + 1, min(len(block), len(group))):
                if a < len(block[k]):
                    pair = (group[k], block[k][a])
                    pairs.append(pair if 2 * (k - a) <= len(block) else (pair[1], pair[0]))
    taken = {node for pair in pairs for node in pair}
    left = half_to_half_pairs([node for group in grouped for node in group if node not in taken])
    return pairs + [(other, one) if number % 2 else (one, other) for number, (one, other) in enumerate(left)]


def half_to_half_pairs(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of the first half with the second, in order; with an odd number of nodes the last one rests."""
    half = len(nodes) // 2
    return list(zip(nodes[:half], nodes[half : 2 * half], strict=True))


def neighbour_pairs(nodes: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of nodes that are next to each other in the list."""
    return list(zip(nodes[::2], nodes[1::2], strict=False))
