"""Which link is slow: the ranks measure pairs of nodes in rounds until that is settled."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runbook.checks.bandwidth.pairing_rounds import Meeting, Schedule
from runbook.checks.bandwidth.slow_links import (
    Judgement,
    Link,
    LinksVerdict,
    Measured,
    Normal,
    estimate_normal,
    links_verdict,
)
from runbook.checks.context import Context
from runbook.checks.ranks.pool import Halt, RankMember, RankPool
from runbook.launch.ranks import Rank
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Node
from runbook.model.units import count_text

RANK_ALONE_S = 0.4
"""Seconds for which a rank is measured alone."""
MIN_EVEN_RATE_SHARE = 0.5
"""When the slowest rank reaches less than this part of the fastest, ranks are measured again before one is blamed:
other programs run as well."""

MIN_SHORT_OF_CPUS_SHARE = 0.3
"""When every rank waited for a CPU for this share of the time, a slow job lacks CPUs first of all."""

TRANSFER_STALL_TIMEOUT_S = 10.0
"""Seconds of a stall, in which nothing moves at all. Even over a link of 100 kbit/s a message takes less."""

TimedRankPair = tuple[int, int, float]
"""Two ranks, and for about how many seconds each direction lasts."""


@dataclass(frozen=True, slots=True)
class PairMeasured:
    """What one rank received from another. `gbytes`: GB/s while only this direction was busy; `seconds`: how long that
    took; `waited`: seconds of it in which one of the two did not run. `both`: GB/s while the other direction was busy
    too. `us`: microseconds for a few bytes, one way. `losses`: the share of TCP segments that the source's node lost;
    each burst of losses counts as one."""

    gbytes: float
    seconds: float
    waited: float
    both: float | None = None
    us: float | None = None
    losses: float | None = None


class Unfinished(Exception):
    """A measurement did not come to an end. `halt` says how the wait for the ranks ended, if that is why."""

    def __init__(self, says: str, halt: Halt | None = None) -> None:
        super().__init__(says)
        self.halt = halt


class MeasuringRanks:
    """Orders ranks to measure, until a deadline on the monotonic clock for all measurements together. Methods raise
    Unfinished.

    `go_on` is asked about a halt: True means that the halt proves nothing, so that waiting goes on.
    """

    def __init__(
        self, pool: RankPool, at: Context, timeout_s: float, go_on: Callable[[Halt], bool] = lambda _: False
    ) -> None:
        self._pool = pool
        self._ends = time.monotonic() + min(timeout_s, at.left_s)
        self._go_on = go_on
        for name, result in at.each(lambda node: at.session(node).push_program("rank_bandwidth")).items():
            if isinstance(result, BaseException):
                raise Unfinished(f"the measurement could not be brought to {name}: {result}")

    def alone(self) -> dict[int, tuple[float, float]]:
        """By rank, GB/s in its own memory and the share of time without a CPU. When ranks differ much, the better of
        two measurements."""
        found = self._alone()
        if has_uneven_rates(found):
            found = {rank: max(again, found.get(rank, again)) for rank, again in self._alone().items()}
        return found

    def _alone(self) -> dict[int, tuple[float, float]]:
        said = self._run({"alone": RANK_ALONE_S}, "alone")
        return {int(each["rank"]): (float(each["gbytes"]), float(each["waited"])) for each in said}

    def meet(
        self, pairs: Sequence[TimedRankPair], *, trips: int = 0, both: bool = False
    ) -> dict[tuple[int, int], PairMeasured]:
        """What every pair moved, by source and destination. All pairs are measured at once; no rank may be in two of
        them."""
        mine = {rank: pair for pair in pairs for rank in pair[:2]}

        def own(rank: Rank) -> dict[str, Any]:
            return {"pair": mine.get(rank.rank)}  # each rank gets only its own pair, not those of a thousand others

        said = self._run({"trips": trips, "both": both}, "moved", own)
        found = {(int(each["source"]), int(each["destination"])): _parse_measurement(each) for each in said}
        wanted = {way for one, other, _ in pairs for way in ((one, other), (other, one))}
        if missing := wanted - found.keys():
            raise Unfinished(f"rank {min(missing)[1]} did not say what it received from rank {min(missing)[0]}")
        return {way: found[way] for way in wanted}

    def _run(
        self, what: Mapping[str, Any], event: str, own: Callable[[Rank], Mapping[str, Any]] = lambda _: {}
    ) -> list[Mapping[str, Any]]:
        """Gives the order, and returns what the ranks said about it."""
        if self._ends <= time.monotonic():
            raise Unfinished("there was no time left to measure the rest")
        said: list[Mapping[str, Any]] = []

        def hear(_member: RankMember, message: Mapping[str, Any]) -> None:
            if message.get("event") == event:
                said.append(message)

        self._pool.order({"do": "measure", **what}, own)
        for halt in self._halts(hear):
            if halt.kind == "late" or not self._go_on(halt):
                raise Unfinished(
                    f"the ranks did not finish the measurement ({halt.kind} after {halt.seconds:.1f} s)", halt
                )
            self._pool.go_on(halt)
        return said

    def _halts(self, hear: Callable[[RankMember, Mapping[str, Any]], None]) -> Iterator[Halt]:
        while True:
            left = max(0.1, self._ends - time.monotonic())
            halt = self._pool.until("done", timeout_s=left, stall_s=lambda: TRANSFER_STALL_TIMEOUT_S, on_message=hear)
            if halt is None:
                return
            yield halt


def _parse_measurement(said: Mapping[str, Any]) -> PairMeasured:
    return PairMeasured(
        float(said["gbytes"]),
        float(said["seconds"]),
        float(said["waited"]),
        said.get("both"),
        said.get("us"),
        said.get("losses"),
    )


def is_short_of_cpus(alone: Mapping[int, tuple[float, float]]) -> bool:
    """Whether the threads of every rank, measured alone, waited for a CPU for much of the time."""
    return min((waited for _, waited in alone.values()), default=0.0) >= MIN_SHORT_OF_CPUS_SHARE


def has_uneven_rates(alone: Mapping[int, tuple[float, float]]) -> bool:
    """Whether ranks differ so much, measured alone, that they are measured again."""
    rates = [rate for rate, _ in alone.values()]
    return min(rates, default=0.0) < MIN_EVEN_RATE_SHARE * max(rates, default=0.0)


LONG_TRANSFER_FACTOR = 3.0
"""A long transfer takes this many times as long as a short one."""

MAX_LINK_TRIES = 8
"""How many times a link is tried at most, as long as no measurement of it counts."""

MIN_EXPLAINED_SHARE = 0.5
"""A slow rate does not count when an end did not run for this part of the time that was lost."""


MIN_LOSSY_SHARE, MIN_LOSSY_FACTOR = 0.01, 5.0
"""A link loses packets when it loses at least this share of its TCP segments (a burst of losses counts as one), and
this many times the median of all links: losses all over a busy network accuse no link."""

LOSSY_TRANSFER_SHARE = 0.4
"""A transfer that lost packets counts as if it had carried this part of its bytes, so that lossy links are found as
slow ones are. On a short path TCP hides losses that would cost most of the rate on a fast or a long path."""


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """One link in one round (counted from 0). `moved`: the numbers of all pairs of ranks together, which run side by
    side as in an AllReduce. `rails`: GB/s by the numbers of the two ranks. `counts`: whether both ends had a CPU, so
    that the rate proves something."""

    link: Link
    round: int
    meeting: Meeting
    moved: PairMeasured
    rails: Mapping[tuple[int, int], float] = field(default_factory=dict)
    counts: bool = True


@dataclass
class Search:
    """What was measured. `stopped`: why the search ended early, or None. `enough`: GB/s above which more makes no
    difference."""

    nodes: tuple[str, ...]
    leaf_of: Mapping[str, str]
    enough: float = math.inf
    found: list[MeasuredLink] = field(default_factory=list)
    rounds: int = 0
    stopped: str | None = None

    @property
    def measured(self) -> list[Measured]:
        """The measurements that count, as if every link had as many pairs of ranks as the one with the most: with an
        adapter for each rank, a node with fewer ranks carries less and is as fast."""
        least = self.lossy_from
        most = max((len(each.rails) for each in self.found), default=0)
        return [
            Measured(
                each.link,
                min(self.enough, each.moved.gbytes * (most / len(each.rails) if each.rails else 1.0))
                * (LOSSY_TRANSFER_SHARE if (each.moved.losses or 0.0) >= least else 1.0),
                each.round,
                each.meeting.asked,
                each.meeting.long,
                each.meeting.alone,
            )
            for each in self.found
            if each.counts
        ]

    @property
    def lossy_from(self) -> float:
        """The share of lost segments from which on a link counts as losing packets."""
        losses = [each.moved.losses for each in self.found if each.counts and each.moved.losses is not None]
        return max(MIN_LOSSY_SHARE, MIN_LOSSY_FACTOR * statistics.median(losses)) if losses else math.inf

    def judge(self) -> Judgement:
        return Judgement(self.nodes, self.measured, self.leaf_of)

    @property
    def verdict(self) -> LinksVerdict:
        """What the measurements prove. Without measurements no node is accused."""
        return links_verdict(self.judge()) if self.measured else LinksVerdict(Normal(0.0, 0.0))

    @property
    def best(self) -> dict[Link, float]:
        """The best rate of each link, in GB/s."""
        found: dict[Link, float] = {}
        for each in self.found:
            if each.counts:
                found[each.link] = max(each.moved.gbytes, found.get(each.link, 0.0))
        return found

    @property
    def again(self) -> list[tuple[str, str]]:
        """Pairs with a link for which no measurement counts yet, as long as another try may help."""
        open_ = [
            all_[0]
            for all_ in self._tried.values()
            if len(all_) < MAX_LINK_TRIES and not any(each.counts for each in all_)
        ]
        return list(dict.fromkeys((each.meeting.one, each.meeting.other) for each in open_))

    @property
    def never_counted(self) -> list[Link]:
        """Links for which no measurement counts, however often they were tried."""
        return [link for link, tried in self._tried.items() if not any(one.counts for one in tried)]

    @property
    def _tried(self) -> dict[Link, list[MeasuredLink]]:
        """By link, the measurements whose results were needed."""
        return values_by_key((each.link, each) for each in self.found if each.meeting.asked)

    @property
    def too_busy(self) -> list[str]:
        """Nodes that were measured and had no CPU each time, so that nothing is known about them."""
        tried = {name for each in self.found for name in each.link.ends}
        return [name for name in self.judge().untested(self.nodes) if name in tried] if self.found else []


def search_slow_links(
    ranks: MeasuringRanks,
    members: Sequence[RankMember],
    *,
    seconds: float,
    leaf_of: Mapping[str, str] | None = None,
    every_pair: bool = False,
    trips: int = 0,
    both: bool = False,
    enough: float = math.inf,
    say: Callable[[str], object] = lambda _: None,
) -> Search:
    """Measures in rounds until all is settled. `seconds` is for one direction of a short transfer."""
    by_node = values_by_key((member.rank.node, member) for member in members)
    done = Search(tuple(by_node), dict(leaf_of or {}), enough)
    schedule = Schedule(done.nodes, done.leaf_of, every_pair=every_pair)
    judged: Judgement | None = None
    while len(done.nodes) > 1 and (meetings := schedule.round(done.rounds, judged, done.measured, done.again)):
        say(f"round {done.rounds + 1}: {count_text(len(meetings), 'pair')} of nodes")
        pairs = {each: _timed_rank_pairs(by_node, each, seconds) for each in meetings}
        try:
            moved = ranks.meet([pair for some in pairs.values() for pair in some], trips=trips, both=both)
        except Unfinished as error:
            if error.halt is not None and error.halt.kind != "late":
                raise
            done.stopped = str(error)
            break
        new = [
            _link_measurement(link, done.rounds, each, pairs[each], moved) for each in meetings for link in each.links
        ]
        done.found += flag_counting_measurements(done.found, new, enough)
        done.rounds += 1
        judged = done.judge()
    return done


def _timed_rank_pairs(
    by_node: Mapping[str, Sequence[RankMember]], meeting: Meeting, seconds: float
) -> list[TimedRankPair]:
    """The pairs of ranks of two nodes: ranks with the same place on each. With GPUs each pair has its own adapter."""
    here, there = by_node[meeting.one], by_node[meeting.other]
    lasts = seconds * (LONG_TRANSFER_FACTOR if meeting.long else 1.0)
    return [(one.rank.rank, other.rank.rank, lasts) for one, other in zip(here, there, strict=False)]


def _link_measurement(
    link: Link,
    number: int,
    meeting: Meeting,
    pairs: Sequence[TimedRankPair],
    moved: Mapping[tuple[int, int], PairMeasured],
) -> MeasuredLink:
    """The measurement of a link, from its pairs of ranks. A link is as fast as its slowest pair allows: AllReduce gives
    all pairs the same work."""
    ways = [(one, other) if link.source == meeting.one else (other, one) for one, other, _ in pairs]
    said = [moved[way] for way in ways]
    both = [each.both for each in said if each.both is not None]
    us = [each.us for each in said if each.us is not None]
    losses = [each.losses for each in said if each.losses is not None]
    together = PairMeasured(
        len(said) * min(each.gbytes for each in said),
        max(each.seconds for each in said),
        max(each.waited for each in said),
        len(both) * min(both) if both else None,
        statistics.median(us) if us else None,
        max(losses, default=None),
    )
    return MeasuredLink(link, number, meeting, together, {way: moved[way].gbytes for way in ways})


def flag_counting_measurements(
    before: Sequence[MeasuredLink], new: Sequence[MeasuredLink], enough: float = math.inf
) -> list[MeasuredLink]:
    """The new measurements with `counts`: a slow one does not count if an end had no CPU meanwhile, unless it reached
    `enough` GB/s all the same."""
    usual = estimate_normal(min(enough, each.moved.gbytes) for each in (*before, *new))
    return [replace(each, counts=each.moved.gbytes >= enough or not is_cpu_starved(each.moved, usual)) for each in new]


def unjudged_link_text(link: Link) -> str:
    """Why nothing is known about a link of which no measurement counts, in words."""
    return f"{link} could not be judged: it was slow each time, and each time one of its nodes had no CPU"


def is_cpu_starved(moved: PairMeasured, usual: Normal) -> bool:
    """Whether the rate is slow, and most of the lost time is explained by an end that did not run."""
    ratio = moved.gbytes / usual.median if usual.median else 1.0
    return ratio < usual.suspect and moved.waited >= MIN_EXPLAINED_SHARE * (1 - ratio) * moved.seconds


def switch_by_node(nodes: Sequence[Node]) -> dict[str, str]:
    """The switch of each node, as far as the inventory names it: its leaf, or else its rack."""
    return {node.name: name for node in nodes if (name := node.leaf or node.rack)}
