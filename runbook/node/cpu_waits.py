"""How long processes wait for a CPU: in the kernel's queue, or out of the quota of their control group. Linux."""

from __future__ import annotations

import os
import re

from runbook.node.proc import read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PROCESSES = 8


class CpuTime:
    """What the kernel counts of a process's main thread: seconds on a CPU, seconds in the queue for one, and how often
    it got one."""

    __slots__ = ("ran_s", "turns", "waited_s")

    def __init__(self, ran_ns: int, waited_ns: int, turns: int) -> None:
        self.ran_s = ran_ns / 1e9
        self.waited_s = waited_ns / 1e9
        self.turns = turns


def cpu_time(pid: int) -> CpuTime | None:
    """None where the kernel does not count it, or it has gone."""
    words = (read("/proc/%d/schedstat" % pid) or "").split()
    return CpuTime(*map(int, words)) if len(words) == 3 and all(word.isdigit() for word in words) else None


def waited(before: CpuTime | None, after: CpuTime | None, seconds: float, runnable: bool) -> float | None:
    """For what part of that time it waited for a CPU. `runnable`: whether it was at both its ends; the kernel counts a
    wait only once it is over."""
    if before is None or after is None:
        return None
    if runnable and after.turns == before.turns:
        return round(max(0.0, 1.0 - (after.ran_s - before.ran_s) / max(0.01, seconds)), 2)
    return round(min(1.0, (after.waited_s - before.waited_s) / max(0.01, seconds)), 2)


def descent(pid: int) -> list[int]:
    """A process and what it started, the first of them."""
    found = [pid]
    for one in found:
        if len(found) < MOST_PROCESSES:
            found += [int(child) for child in (read("/proc/%d/task/%d/children" % (one, one)) or "").split()]
    return found[:MOST_PROCESSES]


def throttled_us(those: Iterable[int]) -> int | None:
    """Microseconds for which the control group of one of these processes, whichever most, was held back so far."""
    quotas = [of_group(pid) for pid in those]
    return max((one for one in quotas if one is not None), default=None)


def of_group(pid: int) -> int | None:
    """Microseconds for which its control group, or one above it, has waited for a CPU quota, in either kind of
    hierarchy."""
    found = None
    for line in (read("/proc/%d/cgroup" % pid) or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = "/sys/fs/cgroup/" + controllers
        while True:
            said = read(os.path.join(base, path.strip("/"), "cpu.stat")) or ""
            held_back = re.search(r"^throttled_(usec|time) (\d+)$", said, re.MULTILINE)
            if held_back:
                found = (found or 0) + int(held_back.group(2)) // (1 if held_back.group(1) == "usec" else 1000)
            if not path.strip("/"):
                break
            path = os.path.dirname(path.rstrip("/"))
    return found
