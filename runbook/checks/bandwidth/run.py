"""Make the ranks measure: each alone, pairs inside a node, pairs of nodes. Within a deadline, and only when it is slow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.checks.bandwidth.judge import Link, Role
from runbook.checks.bandwidth.lanes import SLOWER_THAN_GATE, LanesVerdict, judge, ring, rounds, second_look
from runbook.checks.bandwidth.ranks import Halted, MeasuringRanks, uneven
from runbook.checks.bandwidth.search import Search, leaves, look
from runbook.checks.context import Context
from runbook.checks.normal import span_text
from runbook.checks.ranks.evidence import gather
from runbook.checks.ranks.pool import RankMember, RankPool
from runbook.model.errors import Unreachable

DEADLINE_S = 20.0
WAY_S = 0.25
MOST_ROUNDS = 4
"""Of second looks: with more suspects than this has room for, the slowest are looked at."""


@dataclass
class LaneLayer:
    """Lanes of one kind: GB/s of each in the ring and in the second look, and the pairs of ranks it was made of."""

    first: dict[Link, float] = field(default_factory=dict)
    second: dict[Link, float] = field(default_factory=dict)
    pairs: dict[Link, dict[tuple[int, int], float]] = field(default_factory=dict)
    verdict: LanesVerdict = field(default_factory=LanesVerdict)

    @property
    def rates(self) -> dict[Link, float]:
        """The better of the two looks."""
        return {
            lane: max(self.first.get(lane, 0.0), self.second.get(lane, 0.0)) for lane in {**self.first, **self.second}
        }

    @property
    def span(self) -> str:
        return span_text(min(self.rates.values()), max(self.rates.values()))


@dataclass
class Isolation:
    """What was measured. `alone`: GB/s in its own memory and the share of time without a CPU, by rank. `busy`: by node,
    who uses the CPUs there, looked at when ranks differ. `stopped`: why not everything could be measured."""

    alone: dict[int, tuple[float, float]] = field(default_factory=dict)
    busy: dict[str, tuple[str, ...]] = field(default_factory=dict)
    inside: LaneLayer = field(default_factory=LaneLayer)
    between: LaneLayer = field(default_factory=LaneLayer)
    stopped: str | None = None


def isolate(pool: RankPool, at: Context, gate: float) -> Isolation:
    """Measure every layer. `gate` is the bus bandwidth, in GB/s, that all of them together should have had."""
    found = Isolation()
    by_node: dict[str, list[RankMember]] = {}
    for member in pool.members:
        by_node.setdefault(member.rank.node, []).append(member)
    numbers = {member.label: member.rank.rank for member in pool.members}
    inside = [link for members in by_node.values() for link in ring([member.label for member in members])]
    try:
        ranks = MeasuringRanks(pool, at, DEADLINE_S)
        at.say("too slow: measuring every rank alone")
        found.alone = ranks.alone()
        if uneven(found.alone):
            gather(pool)
            found.busy = {node: _busy(pool.seen.get(node) or {}) for node in by_node}
        if inside:
            at.say("too slow: measuring inside each node")
            _look_inside(ranks, found.inside, inside, numbers, gate)
        if len(by_node) > 1:
            at.say("too slow: measuring between the nodes, each direction")
            done = look(ranks, pool.members, seconds=WAY_S, leaf_of=leaves(at.nodes), enough=gate)
            found.between, found.stopped = between(done), done.stopped
    except (Halted, Unreachable) as error:
        found.stopped = str(error)
    return found


def between(done: Search) -> LaneLayer:
    """A layer out of a search: those who are far below the others. What is only a little slower is not why all are."""
    told, best = done.verdict, done.best
    limit = SLOWER_THAN_GATE * told.normal.median

    def slow(links: Iterable[Link]) -> bool:
        return all(best[link] < limit for link in links if link in best)

    def ends(role: Role) -> tuple[str, ...]:
        leaves = [leaf.name for leaf in told.leaves if leaf.role is role]
        names = [end.name for end in told.nodes if end.role is role]
        names += [node for node in done.nodes if done.leaf_of.get(node) in leaves]
        return tuple(name for name in names if slow(link for link in best if link.end(role).name == name))

    pairs = [Link(str(done.leaf_of.get(link.source)), str(done.leaf_of.get(link.destination))) for link in best]
    paths = [*told.links, *(link for link, leaf in zip(best, pairs, strict=True) if leaf in told.leaf_pairs)]
    rails: dict[Link, dict[tuple[int, int], float]] = {}
    for each in done.found:
        rails.setdefault(each.link, {}).update(each.rails)
    verdict = LanesVerdict(ends(Role.SENDS), ends(Role.RECEIVES), tuple(path for path in paths if slow([path])))
    return LaneLayer(best, {}, rails, verdict)


def _busy(seen: Mapping[str, Any]) -> tuple[str, ...]:
    """Other programs that use a CPU, the busiest first."""
    return tuple(
        f"pid {one['pid']} of {one['user']} uses {one['cpu']:.0%} of a CPU: {one['command']}"
        for one in seen.get("busy", ())
    )[:4]


def _look_inside(
    ranks: MeasuringRanks, layer: LaneLayer, links: Sequence[Link], numbers: Mapping[str, int], gate: float
) -> None:
    """Every pair of a ring once, then those that were slow and their ends a second time; what is known when time is up stays."""

    def measure(group: Sequence[Link]) -> dict[Link, float]:
        pairs = {link: (numbers[link.source], numbers[link.destination]) for link in group}
        moved = ranks.meet([(*pair, WAY_S) for pair in pairs.values()])
        return {link: moved[pair].gbytes for link, pair in pairs.items()}

    for group in rounds(links):
        layer.first |= measure(group)
    for group in rounds(second_look(layer.first, gate))[:MOST_ROUNDS]:
        layer.second |= measure(group)
    layer.verdict = judge(layer.first, layer.second, gate)
