"""Do the clocks of the nodes agree? The odd one out is wrong."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping

from runbook.model.verdict import Finding
from runbook.parsers.clock import FAIL_S, WARN_S


class Clocks:
    """The clocks of all nodes, as seconds ahead of this machine's."""

    def __init__(self, offsets: Mapping[str, float]) -> None:
        self.offsets = offsets
        self.right = right_clock(offsets)
        self._seen = tuple(
            f"{n}: {offset:+.1f} s from this machine's clock" for n, offset in sorted(offsets.items())[:8]
        )
        self._apart = max(offsets.values(), default=0.0) - min(offsets.values(), default=0.0)

    def finding(self, node: str, warnings: list[str]) -> Finding | None:
        """Compare with the clock that most others agree with: the odd one out is wrong."""
        if node not in self.offsets:
            return None
        skew = self.offsets[node] - self.right
        if abs(skew) < WARN_S:
            return None
        way = "ahead of" if skew > 0 else "behind"
        # Two that are each a little off, in different directions, are far from each other.
        far = abs(skew) >= FAIL_S or (self._apart >= FAIL_S and abs(skew) >= self._apart / 2)
        if not far or len(self.offsets) == 1:
            warnings.append(f"clock is {abs(skew):.1f} s {way} the others: start chrony or systemd-timesyncd")
            return None
        return Finding(
            "clock-skew",
            f"the clock of {node} is {abs(skew):.0f} s {way} the others",
            f"on {node}: `sudo timedatectl set-ntp true` (or `sudo chronyc makestep`), then check `date` on every node",
            self._seen,
        )

    def proof(self, node: str) -> str | None:
        """What is said of a clock that is right; ours may be the wrong one, which is nobody's fault but worth a word."""
        if node not in self.offsets or abs(self.offsets[node] - self.right) >= WARN_S:
            return None
        if abs(self.right) < WARN_S:
            return "clock in step"
        way = "behind" if self.right > 0 else "ahead"
        return f"clock in step with the nodes (this machine's is {abs(self.right):.0f} s {way})"


def right_clock(offsets: Mapping[str, float]) -> float:
    """The clock that most agree with, this machine's included, as seconds from this machine's."""
    clocks = [0.0, *offsets.values()]  # ours first: it wins a tie
    order = sorted(clocks)
    return max(clocks, key=lambda clock: bisect_left(order, clock + WARN_S) - bisect_right(order, clock - WARN_S))
