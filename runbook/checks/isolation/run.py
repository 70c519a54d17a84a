"""Make the ranks measure: each alone, pairs inside a node, pairs of nodes. Within a deadline, and only when it is slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from runbook.checks.context import Context
from runbook.checks.isolation.lanes import Lane, Verdict, judge, ring, rounds, second_look
from runbook.checks.normal import span_text
from runbook.checks.ranks.evidence import gather
from runbook.checks.ranks.gang import Gang, Member
from runbook.model.errors import Unreachable

DEADLINE_S = 10.0
ALONE_S = 0.4
LANE_S = 0.25
UNEVEN = 0.5
"""Ranks that differ by more than this are measured again before anybody is blamed: other programs run as well."""

MOST_ROUNDS = 4
"""Of second looks: with more suspects than this has room for, the slowest are looked at."""


Pairs = list[tuple[int, int]]


@dataclass
class Layer:
    """Lanes of one kind: GB/s of each in the ring and in the second look, and the pairs of ranks it was made of."""

    first: dict[Lane, float] = field(default_factory=dict)
    second: dict[Lane, float] = field(default_factory=dict)
    pairs: dict[Lane, dict[tuple[int, int], float]] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def rates(self) -> dict[Lane, float]:
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
    inside: Layer = field(default_factory=Layer)
    between: Layer = field(default_factory=Layer)
    stopped: str | None = None


class _Halted(Exception):
    """A measurement did not come to an end."""


def isolate(gang: Gang, at: Context, gate: float) -> Isolation:
    """Measure every layer. `gate` is the bus bandwidth, in GB/s, that all of them together should have had."""
    found = Isolation()
    ranks = _Ranks(gang, time.monotonic() + min(DEADLINE_S, at.left_s))
    by_node: dict[str, list[Member]] = {}
    for member in gang.members:
        by_node.setdefault(member.rank.node, []).append(member)
    numbers = {member.label: member.rank.rank for member in gang.members}
    inside = [lane for members in by_node.values() for lane in ring([member.label for member in members])]
    between = ring(list(by_node))
    try:
        _bring(at)
        at.say("too slow: measuring every rank alone")
        found.alone = ranks.alone()
        if uneven(found.alone):
            gather(gang)
            found.busy = {node: _busy(gang.seen.get(node) or {}) for node in by_node}
        if inside:
            at.say("too slow: measuring inside each node")
            _look(ranks, found.inside, inside, lambda lane: [(numbers[lane.source], numbers[lane.destination])], gate)
        if between:
            at.say("too slow: measuring between the nodes, each direction")
            _look(ranks, found.between, between, lambda lane: _rails(by_node, lane), gate)
    except (_Halted, Unreachable) as error:
        found.stopped = str(error)
    return found


def uneven(alone: Mapping[int, tuple[float, float]]) -> bool:
    rates = [rate for rate, _ in alone.values()]
    return min(rates, default=0.0) < UNEVEN * max(rates, default=0.0)


def _busy(seen: Mapping[str, Any]) -> tuple[str, ...]:
    """Other programs that use a CPU, the busiest first."""
    return tuple(
        f"pid {one['pid']} of {one['user']} uses {one['cpu']:.0%} of a CPU: {one['command']}"
        for one in seen.get("busy", ())
    )[:4]


def _bring(at: Context) -> None:
    """Lay the program beside the ranks. Raises _Halted where that fails on a node."""
    for name, result in at.each(lambda node: at.session(node).push_program("lanes")).items():
        if isinstance(result, BaseException):
            raise _Halted(f"the measurement could not be brought to {name}: {result}")


def _rails(by_node: Mapping[str, Sequence[Member]], lane: Lane) -> Pairs:
    """Every rank of one node and the rank with the same place on the other: with GPUs, each through its own adapter."""
    senders, receivers = by_node[lane.source], by_node[lane.destination]
    return [(one.rank.rank, other.rank.rank) for one, other in zip(senders, receivers, strict=False)]


def _look(ranks: _Ranks, layer: Layer, lanes: Sequence[Lane], pairs_of: Callable[[Lane], Pairs], gate: float) -> None:
    """Every lane once, then those that were slow and their ends a second time; what is known when time is up stays."""
    for group in rounds(lanes):
        layer.first |= _rates(ranks.move({lane: pairs_of(lane) for lane in group}), layer)
    for group in rounds(second_look(layer.first, gate))[:MOST_ROUNDS]:
        layer.second |= _rates(ranks.move({lane: pairs_of(lane) for lane in group}), layer)
    layer.verdict = judge(layer.first, layer.second, gate)


def _rates(moved: Mapping[Lane, Mapping[tuple[int, int], float]], layer: Layer) -> dict[Lane, float]:
    """A lane is as fast as its slowest pair lets it be: AllReduce gives all pairs the same work."""
    for lane, rates in moved.items():
        layer.pairs.setdefault(lane, {}).update(rates)
    return {lane: len(rates) * min(rates.values()) for lane, rates in moved.items() if rates}


class _Ranks:
    """The ranks as something that measures, until a deadline on the monotonic clock. Raises _Halted."""

    def __init__(self, gang: Gang, ends: float) -> None:
        self._gang = gang
        self._ends = ends

    def alone(self) -> dict[int, tuple[float, float]]:
        """By rank, GB/s in its own memory and the share of time without a CPU; the better of two where they differ."""
        found = self._alone()
        if uneven(found):
            found = {rank: max(again, found.get(rank, again)) for rank, again in self._alone().items()}
        return found

    def _alone(self) -> dict[int, tuple[float, float]]:
        found: dict[int, tuple[float, float]] = {}
        for said in self._run({"alone": ALONE_S}, "alone"):
            found[int(said["rank"])] = float(said["gbytes"]), float(said["waited"])
        return found

    def move(self, wanted: Mapping[Lane, Pairs]) -> dict[Lane, dict[tuple[int, int], float]]:
        """GB/s of every pair of ranks, all at once."""
        pairs = [pair for each in wanted.values() for pair in each]
        said = self._run({"lanes": pairs, "seconds": LANE_S}, "moved")
        rates = {(int(one["source"]), int(one["destination"])): float(one["gbytes"]) for one in said}
        return {lane: {pair: rates[pair] for pair in each} for lane, each in wanted.items()}

    def _run(self, what: Mapping[str, Any], event: str) -> list[Mapping[str, Any]]:
        """Give the order and return what the ranks said of it."""
        left = self._ends - time.monotonic()
        if left <= 0:
            raise _Halted("there was no time left to measure the rest")
        said: list[Mapping[str, Any]] = []

        def hear(_member: Member, message: Mapping[str, Any]) -> None:
            if message.get("event") == event:
                said.append(message)

        self._gang.order({"do": "measure", **what})
        halt = self._gang.until("done", timeout_s=left, stall_s=lambda: left, on_message=hear)
        if halt is not None:
            raise _Halted(f"the ranks did not finish the measurement ({halt.kind} after {halt.seconds:.1f} s)")
        return said
