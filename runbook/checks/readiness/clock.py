"""Do the clocks of the nodes agree? The odd one out is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.model.verdict import Finding

SKEW_WARN_S, SKEW_FAIL_S = 2.0, 10.0
"""torch's elastic agent drops a peer whose stamped heartbeat is more than 15 s old (pytorch#56538)."""


def right_clock(offsets: Mapping[str, float]) -> float:
    """The clock that most agree with, this machine's included, as seconds from this machine's."""
    clocks = [0.0, *offsets.values()]  # ours first: it wins a tie
    return max(clocks, key=lambda clock: sum(abs(clock - other) < SKEW_WARN_S for other in clocks))


def clock_finding(node: str, offsets: Mapping[str, float], warnings: list[str]) -> Finding | None:
    """Compare with the clock that most others agree with: the odd one out is wrong."""
    if node not in offsets:
        return None
    skew = offsets[node] - right_clock(offsets)
    apart = max(offsets.values()) - min(offsets.values())
    if abs(skew) < SKEW_WARN_S:
        return None
    way = "ahead of" if skew > 0 else "behind"
    # Two that are each a little off, in different directions, are far from each other.
    far = abs(skew) >= SKEW_FAIL_S or (apart >= SKEW_FAIL_S and abs(skew) >= apart / 2)
    if not far or len(offsets) == 1:
        warnings.append(f"clock is {abs(skew):.1f} s {way} the others: start chrony or systemd-timesyncd")
        return None
    return Finding(
        "clock-skew",
        f"the clock of {node} is {abs(skew):.0f} s {way} the others",
        f"on {node}: `sudo timedatectl set-ntp true` (or `sudo chronyc makestep`), then check `date` on every node",
        tuple(f"{name}: {offset:+.1f} s from this machine's clock" for name, offset in sorted(offsets.items())[:8]),
    )


def clock_proof(node: str, offsets: Mapping[str, float]) -> str | None:
    """What is said of a clock that is right; ours may be the wrong one, which is nobody's fault but worth a word."""
    if node not in offsets:
        return None
    right = right_clock(offsets)
    if abs(offsets[node] - right) >= SKEW_WARN_S:
        return None
    if abs(right) < SKEW_WARN_S:
        return "clock in step"
    return f"clock in step with the nodes (this machine's is {abs(right):.0f} s {'behind' if right > 0 else 'ahead'})"
