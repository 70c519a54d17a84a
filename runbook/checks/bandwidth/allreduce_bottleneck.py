"""Where a slow AllReduce loses its time: each rank alone, pairs inside a node, or pairs of nodes in each direction.

An end is anything that can be slow: a node, or one rank of a node. A link goes one way, from one end to another. First
every end sends to the next (a ring, as AllReduce does), so each is tried once as sender and once as receiver. A slow
link leaves two suspects and the path between them; each suspect is then tried with a partner that is proven good in the
opposite role. In one round no end is on two links, so a slow neighbour makes no other end look slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from runbook.checks.bandwidth.normal_busbw import rate_range_text
from runbook.checks.bandwidth.slow_link_search import (
    MeasuringRanks,
    Search,
    Unfinished,
    has_uneven_rates,
    is_short_of_cpus,
    search_slow_links,
    switch_by_node,
)
from runbook.checks.bandwidth.slow_links import Link, Role
from runbook.checks.context import Context
from runbook.checks.ranks.evidence import busy_program_lines, gather_evidence
from runbook.checks.ranks.pool import RankPool
from runbook.model.errors import Unreachable
from runbook.model.grouping import values_by_key

GATE_MET_SLOW_SHARE = 0.7
GATE_MISSED_SLOW_SHARE = 0.5
"""A link is slow if it is below the gate and below a part of the fastest link: 0.7 if the fastest meets the gate, which
proves that the gate is possible; else 0.5, since healthy links of one cluster differ by no more."""


@dataclass(frozen=True, slots=True)
class RingVerdict:
    """What the links prove. `sending`, `receiving`: ends that are slow in this role with every partner. `paths`: slow
    links for which nothing tells which end is at fault, or whose ends are both fine with others."""

    sending: tuple[str, ...] = ()
    receiving: tuple[str, ...] = ()
    paths: tuple[Link, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """Every end that is to blame, each once."""
        return tuple(dict.fromkeys([*self.sending, *self.receiving]))

    @property
    def clean(self) -> bool:
        """Whether no end and no path is slow."""
        return not (self.sending or self.receiving or self.paths)


def ring_links(ends: Sequence[str]) -> list[Link]:
    """The links from every end to the next. Two ends give both directions, one gives none."""
    if len(ends) < 2:
        return []
    return [Link(end, ends[(index + 1) % len(ends)]) for index, end in enumerate(ends)]


def disjoint_rounds(links: Iterable[Link]) -> list[list[Link]]:
    """The links in rounds in which no end is on two links, by a greedy choice: two rounds for a ring of an even number
    of ends, else three."""
    found: list[tuple[set[str], list[Link]]] = []
    for link in links:
        ends = {*link.ends}
        for taken, members in found:
            if not taken & ends:
                taken |= ends
                members.append(link)
                break
        else:
            found.append((ends, [link]))
    return [members for _, members in found]


def slow_links(measured: Mapping[Link, float], gate: float) -> list[Link]:
    """Links that are slow beside the fastest one, the slowest first. Rates and gate are in GB/s."""
    best = max(measured.values(), default=0.0)
    part = GATE_MET_SLOW_SHARE if best >= gate else GATE_MISSED_SLOW_SHARE
    return sorted((link for link, rate in measured.items() if rate < min(gate, part * best)), key=measured.__getitem__)


def links_to_remeasure(measured: Mapping[Link, float], gate: float) -> list[Link]:
    """Links to measure next: each slow link again, since one slow rate may be chance, and each of its ends with a
    partner that is proven good.

    Partners are used evenly, so that many suspects need few rounds.
    """
    slow = dict.fromkeys(slow_links(measured, gate))
    good = [link for link in measured if link not in slow]
    circle = rings_by_end(measured)
    senders = values_by_key((circle[link.source], link.source) for link in good)
    receivers = values_by_key((circle[link.source], link.destination) for link in good)
    used: dict[str, int] = {}
    wanted: list[Link] = []

    def partner(choice: Mapping[str, Sequence[str]], link: Link) -> str | None:
        free = [end for end in choice.get(circle[link.source], ()) if end not in link.ends]
        chosen = min(free, key=lambda end: used.get(end, 0), default=None)
        if chosen is not None:
            used[chosen] = used.get(chosen, 0) + 1
        return chosen

    for link in slow:
        receiver, sender = partner(receivers, link), partner(senders, link)
        if receiver is not None:
            wanted.append(Link(link.source, receiver))
        if sender is not None:
            wanted.append(Link(sender, link.destination))
        wanted.append(link)
    return list(dict.fromkeys(wanted))


def rings_by_end(links: Iterable[Link]) -> dict[str, str]:
    """For every end, an end that stands for its ring: ranks of one node are no partners for ranks of another."""
    toward: dict[str, str] = {}

    def of(end: str) -> str:
        while (further := toward.setdefault(end, end)) != end:
            end = further
        return end

    for link in links:
        toward[of(link.destination)] = of(link.source)
    return {end: of(end) for end in toward}


def judge_ring(first: Mapping[Link, float], second: Mapping[Link, float], gate: float) -> RingVerdict:
    """Which ends or paths are to blame, by the ring and by the second look. A link that was slow only once accuses no
    node."""
    suspects = slow_links(first, gate)
    # Both looks are judged on one scale. The better of the two counts for a link: a rate that was reached once is
    # possible.
    best = {link: max(first.get(link, 0.0), second.get(link, 0.0)) for link in {**first, **second}}
    slow = set(slow_links(best, gate))
    good = first.keys() - set(suspects)
    sent_by = values_by_key((link.source, link) for link in best)
    received_by = values_by_key((link.destination, link) for link in best)
    receivers, senders = {link.destination for link in good}, {link.source for link in good}

    def whoever_the_partner(mine: list[Link], proven: bool) -> bool:
        return proven and all(link in slow for link in mine)

    sending, receiving, paths = [], [], []
    for link in suspects:
        sent, received = sent_by[link.source], received_by[link.destination]
        sends_slowly = whoever_the_partner(sent, any(other.destination in receivers for other in sent))
        receives_slowly = whoever_the_partner(received, any(other.source in senders for other in received))
        if sends_slowly:
            sending.append(link.source)
        if receives_slowly:
            receiving.append(link.destination)
        if link in slow and not sends_slowly and not receives_slowly:
            paths.append(link)
    return RingVerdict(_without_duplicates(sending), _without_duplicates(receiving), tuple(paths))


def _without_duplicates(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


BOTTLENECK_DEADLINE_S = 20.0
"""Seconds for all measurements of a slow AllReduce together."""
BOTTLENECK_DIRECTION_S = 0.25
"""Seconds for which one direction is measured."""
MAX_SECOND_LOOK_ROUNDS = 4
"""How many rounds the second look inside nodes may take; with more suspects than these have room for, the slowest are
measured."""


@dataclass
class LinkLayer:
    """Links of one kind: the GB/s of each in the ring and in the second look, and the rates of its pairs of ranks.
    `unsettled`: slow links, the slowest first, with an end that was fast with nobody, whether `verdict` blames it or it
    was tried with too few others. `unjudged`: links of which no measurement counts."""

    first: dict[Link, float] = field(default_factory=dict)
    second: dict[Link, float] = field(default_factory=dict)
    pairs: dict[Link, dict[tuple[int, int], float]] = field(default_factory=dict)
    verdict: RingVerdict = field(default_factory=RingVerdict)
    unsettled: tuple[Link, ...] = ()
    unjudged: tuple[Link, ...] = ()

    @property
    def all_fast(self) -> bool:
        """Whether every link is known not to be slow."""
        return self.verdict.clean and not self.unsettled and not self.unjudged

    @property
    def rates(self) -> dict[Link, float]:
        """The better rate of the two looks, in GB/s."""
        return {
            link: max(self.first.get(link, 0.0), self.second.get(link, 0.0)) for link in {**self.first, **self.second}
        }

    @property
    def span(self) -> str:
        """The lowest and the highest rate, in words."""
        return rate_range_text(min(self.rates.values()), max(self.rates.values()))


@dataclass
class Isolation:
    """What was measured. `alone`: by rank, GB/s in its own memory and the share of time without a CPU. `busy`: by node,
    programs that use its CPUs, looked at when ranks differ. `stopped`: why not everything could be measured, or
    None."""

    alone: dict[int, tuple[float, float]] = field(default_factory=dict)
    busy: dict[str, tuple[str, ...]] = field(default_factory=dict)
    inside: LinkLayer = field(default_factory=LinkLayer)
    between: LinkLayer = field(default_factory=LinkLayer)
    stopped: str | None = None


def isolate_bottleneck(pool: RankPool, at: Context, gate: float) -> Isolation:
    """Measures every layer. `gate`: the bus bandwidth, in GB/s, that the AllReduce should have had."""
    found = Isolation()
    by_node = values_by_key((member.rank.node, member) for member in pool.members)
    numbers = {member.label: member.rank.rank for member in pool.members}
    inside = [link for members in by_node.values() for link in ring_links([member.label for member in members])]
    try:
        ranks = MeasuringRanks(pool, at, BOTTLENECK_DEADLINE_S)
        at.say("too slow: measuring every rank alone")
        found.alone = ranks.alone()
        if has_uneven_rates(found.alone) or is_short_of_cpus(found.alone):
            gather_evidence(pool)
            found.busy = {node: busy_program_lines(pool.seen.get(node)) for node in by_node}
        if inside:
            at.say("too slow: measuring inside each node")
            _measure_inside_nodes(ranks, found.inside, inside, numbers, gate)
        if len(by_node) > 1:
            at.say("too slow: measuring between the nodes, each direction")
            done = search_slow_links(
                ranks, pool.members, seconds=BOTTLENECK_DIRECTION_S, leaf_of=switch_by_node(at.nodes), enough=gate
            )
            found.between, found.stopped = between_nodes_layer(done), done.stopped
    except (Unfinished, Unreachable) as error:
        found.stopped = str(error)
    return found


def between_nodes_layer(done: Search) -> LinkLayer:
    """The layer of links between nodes, from a search. Only nodes and links far below the others are blamed: a little
    slower does not explain why the AllReduce is slow."""
    judged, best = done.verdict, done.best
    limit = GATE_MET_SLOW_SHARE * judged.normal.median

    def slow(links: Iterable[Link]) -> bool:
        return all(best[link] < limit for link in links if link in best)

    def ends(role: Role) -> tuple[str, ...]:
        leaves = [leaf.name for leaf in judged.leaves if leaf.role is role]
        names = [end.name for end in judged.nodes if end.role is role]
        names += [node for node in done.nodes if done.leaf_of.get(node) in leaves]
        return tuple(name for name in names if slow(link for link in best if link.end(role).name == name))

    pairs = [Link(str(done.leaf_of.get(link.source)), str(done.leaf_of.get(link.destination))) for link in best]
    paths = [*judged.links, *(link for link, leaf in zip(best, pairs, strict=True) if leaf in judged.leaf_pairs)]
    rails: dict[Link, dict[tuple[int, int], float]] = {}
    for each in done.found:
        rails.setdefault(each.link, {}).update(each.rails)
    verdict = RingVerdict(ends(Role.SENDS), ends(Role.RECEIVES), tuple(path for path in paths if slow([path])))
    proven = done.judge().proven
    unsettled = tuple(
        link
        for link in sorted(best, key=best.__getitem__)
        if slow([link]) and not (proven(link.source, Role.SENDS) and proven(link.destination, Role.RECEIVES))
    )
    return LinkLayer(best, {}, rails, verdict, unsettled, tuple(done.never_counted))


def _measure_inside_nodes(
    ranks: MeasuringRanks, layer: LinkLayer, links: Sequence[Link], numbers: Mapping[str, int], gate: float
) -> None:
    """Measures every pair of a ring once, then slow pairs and their ends again. When time is up, what is known
    stays."""

    def measure(group: Sequence[Link]) -> dict[Link, float]:
        pairs = {link: (numbers[link.source], numbers[link.destination]) for link in group}
        moved = ranks.meet([(*pair, BOTTLENECK_DIRECTION_S) for pair in pairs.values()])
        return {link: moved[pair].gbytes for link, pair in pairs.items()}

    for group in disjoint_rounds(links):
        layer.first |= measure(group)
    for group in disjoint_rounds(links_to_remeasure(layer.first, gate))[:MAX_SECOND_LOOK_ROUNDS]:
        layer.second |= measure(group)
    layer.verdict = judge_ring(layer.first, layer.second, gate)
