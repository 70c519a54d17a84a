"""The ranks that are up, as something that measures: single ranks, and pairs of ranks, one partner each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runbook.checks.context import Context
from runbook.checks.ranks.pool import Halt, RankMember, RankPool
from runbook.launch.ranks import Rank

ALONE_S = 0.4
UNEVEN = 0.5
"""Ranks that differ by more than this are measured again before anybody is blamed: other programs run as well."""

STALL_S = 10.0
"""Nothing moves at all for so long: even over a link of 100 kbit/s a message takes less."""

Pair = tuple[int, int, float]
"""Two ranks, and for about how many seconds each way is to last."""


@dataclass(frozen=True, slots=True)
class PairMeasured:
    """What one rank had of another. GB/s one way alone; how long that took, and for how much of it one of the two was kept
    from running; GB/s while the other way was busy as well; microseconds for a few bytes; the share of its TCP segments that
    the source's node sent again."""

    gbytes: float
    seconds: float
    waited: float
    both: float | None = None
    us: float | None = None
    resent: float | None = None


class Halted(Exception):
    """A measurement did not come to an end. `halt` says how, where it was the ranks."""

    def __init__(self, says: str, halt: Halt | None = None) -> None:
        super().__init__(says)
        self.halt = halt


class MeasuringRanks:
    """Until a deadline on the monotonic clock, of the stage and for all measurements together. Raises Halted.

    `go_on` is asked about a halt: whether it proves nothing, so that waiting goes on.
    """

    def __init__(
        self, pool: RankPool, at: Context, timeout_s: float, go_on: Callable[[Halt], bool] = lambda _: False
    ) -> None:
        self._pool = pool
        self._ends = time.monotonic() + min(timeout_s, at.left_s)
        self._go_on = go_on
        for name, result in at.each(lambda node: at.session(node).push_program("lanes")).items():
            if isinstance(result, BaseException):
                raise Halted(f"the measurement could not be brought to {name}: {result}")

    def alone(self) -> dict[int, tuple[float, float]]:
        """By rank, GB/s in its own memory and the share of time without a CPU; the better of two where they differ."""
        found = self._alone()
        if uneven(found):
            found = {rank: max(again, found.get(rank, again)) for rank, again in self._alone().items()}
        return found

    def _alone(self) -> dict[int, tuple[float, float]]:
        said = self._run({"alone": ALONE_S}, "alone")
        return {int(each["rank"]): (float(each["gbytes"]), float(each["waited"])) for each in said}

    def meet(self, pairs: Sequence[Pair], *, trips: int = 0, both: bool = False) -> dict[tuple[int, int], PairMeasured]:
        """What every pair moved, by source and destination: all pairs at once, and no rank in two of them."""
        mine = {rank: pair for pair in pairs for rank in pair[:2]}

        def own(rank: Rank) -> dict[str, Any]:
            return {"pair": mine.get(rank.rank)}  # a thousand nodes are not told of each other's

        said = self._run({"trips": trips, "both": both}, "moved", own)
        found = {(int(each["source"]), int(each["destination"])): _moved(each) for each in said}
        wanted = {way for one, other, _ in pairs for way in ((one, other), (other, one))}
        if missing := wanted - found.keys():
            raise Halted(f"rank {min(missing)[1]} did not say what it received from rank {min(missing)[0]}")
        return {way: found[way] for way in wanted}

    def _run(
        self, what: Mapping[str, Any], event: str, own: Callable[[Rank], Mapping[str, Any]] = lambda _: {}
    ) -> list[Mapping[str, Any]]:
        """Give the order and return what the ranks said of it."""
        if self._ends <= time.monotonic():
            raise Halted("there was no time left to measure the rest")
        said: list[Mapping[str, Any]] = []

        def hear(_member: RankMember, message: Mapping[str, Any]) -> None:
            if message.get("event") == event:
                said.append(message)

        self._pool.order({"do": "measure", **what}, own)
        for halt in self._halts(hear):
            if halt.kind == "late" or not self._go_on(halt):
                raise Halted(f"the ranks did not finish the measurement ({halt.kind} after {halt.seconds:.1f} s)", halt)
            self._pool.go_on(halt)
        return said

    def _halts(self, hear: Callable[[RankMember, Mapping[str, Any]], None]) -> Iterator[Halt]:
        while True:
            left = max(0.1, self._ends - time.monotonic())
            halt = self._pool.until("done", timeout_s=left, stall_s=lambda: STALL_S, on_message=hear)
            if halt is None:
                return
            yield halt


def _moved(said: Mapping[str, Any]) -> PairMeasured:
    return PairMeasured(
        float(said["gbytes"]),
        float(said["seconds"]),
        float(said["waited"]),
        said.get("both"),
        said.get("us"),
        said.get("resent"),
    )


def uneven(alone: Mapping[int, tuple[float, float]]) -> bool:
    rates = [rate for rate, _ in alone.values()]
    return min(rates, default=0.0) < UNEVEN * max(rates, default=0.0)
