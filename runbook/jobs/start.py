"""Commit: every node starts at one moment, each by its own clock, whose difference from ours was measured just before."""

from __future__ import annotations

import time
from dataclasses import dataclass

from runbook.jobs.kept import KeptProcesses, wait_for
from runbook.model.errors import Unreachable

LEAD_S = 0.3
"""From the word to the start, at least: it has to reach every node before."""

LISTENER_S = 0.03
"""So much earlier starts rank 0, whose listener the others dial."""

RUNNING_S = 10.0


@dataclass(frozen=True, slots=True)
class Skew:
    """How far apart the nodes started, in seconds, by our clock; `doubt`: what the comparison of clocks leaves open."""

    seconds: float
    doubt: float

    def __str__(self) -> str:
        return f"within {self.seconds * 1000:.0f} ms (± {self.doubt * 1000:.0f} ms)"


def measure_clocks(kept: KeptProcesses) -> None:
    """Raises Unreachable where a node does not answer."""
    site = kept.at.run.site
    nodes = [kept.at.inventory.node(name) for name in kept.nodes]
    for name, found in site.each(nodes, lambda node: site.sessions[node.name].clock(), timeout_s=10.0).items():
        if isinstance(found, BaseException):
            raise (
                found
                if isinstance(found, Unreachable)
                else Unreachable("ssh-unreachable", f"{name}: {found}", f"check {name}")
            )
        kept.offsets[name] = found


def commit(kept: KeptProcesses) -> Skew | None:
    """Give the word, and wait until every process runs or has failed. None where not all came to run."""
    doubt = max(uncertain for _, uncertain in kept.offsets.values())
    moment = time.time() + max(LEAD_S, 4 * doubt + 0.1)
    first = [member for member in kept.members if 0 in member.place.ranks]
    for member in [*first, *(member for member in kept.members if member not in first)]:
        offset, _ = kept.offsets[member.place.node]
        at = moment + offset + (0.0 if member in first else LISTENER_S)
        assert member.remote is not None
        try:
            member.remote.feed(f"go {at:.6f}\n".encode())
        except Unreachable as error:
            member.lost = error
    return running(kept, moment - time.time() + RUNNING_S)


def running(kept: KeptProcesses, timeout_s: float) -> Skew | None:
    """Wait until every process runs or one has failed; how far apart they started, None where not all did."""
    ranks = kept.members
    wait_for(
        kept, lambda: any(m.failed for m in ranks) or all(m.started is not None or m.over for m in ranks), timeout_s
    )
    return _skew(kept)


def _skew(kept: KeptProcesses) -> Skew | None:
    if any(member.started is None for member in kept.members):
        return None
    starts = [member.started for member in kept.members if member.started is not None]
    return Skew(max(starts) - min(starts), max(doubt for _, doubt in kept.offsets.values()))
