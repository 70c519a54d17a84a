"""A simulated network: what links carry when some nodes, links or leaves are slow, with noise, and how a search ends there."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.checks.bandwidth.pairing_rounds import Meeting, Schedule
from runbook.checks.bandwidth.slow_links import Endpoint, Judgement, Link, LinksVerdict, Measured, Role, links_verdict

NOISE, TRANSIENTS = 0.03, 0.002
GBYTES = 12.0


@dataclass(frozen=True)
class Network:
    """What is slow, each as a part of the full rate. `ends` are nodes or leaves in a role; `uplinks` are leaves in a role,
    whose nodes share so much of what one node can."""

    count: int
    leaf_size: int | None = None
    ends: Mapping[Endpoint, float] = field(default_factory=dict)
    links: Mapping[Link, float] = field(default_factory=dict)
    leaf_pairs: Mapping[Link, float] = field(default_factory=dict)
    uplinks: Mapping[Endpoint, float] = field(default_factory=dict)
    noise: float = NOISE
    transients: float = TRANSIENTS

    @property
    def nodes(self) -> list[str]:
        return [f"n{number:04}" for number in range(self.count)]

    @property
    def leaf_of(self) -> dict[str, str]:
        size = self.leaf_size
        return {node: f"leaf{number // size}" for number, node in enumerate(self.nodes)} if size else {}

    def full(self, link: Link, leaf_of: Mapping[str, str]) -> float:
        """GB/s without noise."""
        parts = [self.links.get(link, 1.0), *(self.ends.get(link.end(role), 1.0) for role in Role)]
        source, destination = leaf_of.get(link.source), leaf_of.get(link.destination)
        if source and destination and source != destination:
            leaves = Link(source, destination)
            parts += [self.leaf_pairs.get(leaves, 1.0), *(self.ends.get(leaves.end(role), 1.0) for role in Role)]
        return GBYTES * min(parts)

    def shared(
        self, chance: random.Random, meetings: Sequence[Meeting], leaf_of: Mapping[str, str]
    ) -> Iterator[tuple[Link, float]]:
        """The part of the full rate that narrow uplinks leave to links of one round. Every pair sends one way and then
        the other, and not all at the same pace; acknowledgements wait in the same queue."""
        links = [(way, link) for each in meetings for way, link in enumerate(each.links)]
        crossing = [(way, link) for way, link in links if leaf_of.get(link.source) != leaf_of.get(link.destination)]
        for end, capacity in self.uplinks.items():
            own = [(way, link) for way, link in crossing if leaf_of.get(link.end(end.role).name) == end.name]
            for way, link in own:
                others = [each for each in own if each != (way, link)]
                rivals = sum(chance.random() < (0.8 if then == way else 0.2) for then, _ in others)
                yield link, min(1.0, capacity / (1 + rivals * chance.uniform(0.5, 1.0)))
                yield Link(link.destination, link.source), chance.uniform(0.6, 1.0) if rivals > 1 else 1.0

    def measure(self, chance: random.Random, full: float, *, long: bool) -> float:
        times = 3 if long else 1
        rates = [
            full
            * max(0.01, 1 + chance.gauss(0, self.noise))
            * (chance.uniform(0.3, 0.9) if chance.random() < self.transients else 1)
            for _ in range(times)
        ]
        return sum(rates) / times


@dataclass(frozen=True)
class Search:
    """How one ended: what was told, after how many rounds, and the links of the first round."""

    told: LinksVerdict
    rounds: int
    measured: list[Measured]


def search(network: Network, seed: int) -> Search:
    chance = random.Random(seed)
    nodes, leaf_of = network.nodes, network.leaf_of
    schedule = Schedule(nodes, leaf_of)
    measured: list[Measured] = []
    judged: Judgement | None = None
    number = 0
    while meetings := schedule.round(number, judged, measured):
        assert len({name for each in meetings for name in (each.one, each.other)}) == 2 * len(meetings)
        parts = dict(network.shared(chance, meetings, leaf_of))
        for each in meetings:
            for link in each.links:
                full = network.full(link, leaf_of) * parts.get(link, 1.0)
                rate = network.measure(chance, full, long=each.long)
                measured.append(Measured(link, rate, number, each.asked, each.long, each.alone))
        number += 1
        judged = Judgement(nodes, measured, leaf_of)
    assert judged is not None
    return Search(links_verdict(judged), number, measured)


def leaf_size(count: int) -> int:
    return max(2, math.isqrt(count))


def first_links(network: Network) -> list[Link]:
    """What the first round measures: who is slow only with one other is seen only where these two meet."""
    meetings = Schedule(network.nodes, network.leaf_of).round(0, None, [])
    return [link for each in meetings for link in each.links]
