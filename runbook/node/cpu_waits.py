"""How long do processes wait for a CPU, in the kernel's queue or because their control group's quota is used up?
Linux."""

from __future__ import annotations

import os
import re

from runbook.node.proc import control_group_folders, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_FAMILY_PROCESSES = 8  # the most processes of a family that are looked at


class CpuTime:
    """The kernel's counts for a process's main thread: seconds on a CPU, seconds in the queue for one, and how often it
    got one."""

    __slots__ = ("ran_s", "turns", "waited_s")

    def __init__(self, ran_ns: int, waited_ns: int, turns: int) -> None:
        self.ran_s = ran_ns / 1e9
        self.waited_s = waited_ns / 1e9
        self.turns = turns


def cpu_time(pid: int) -> CpuTime | None:
    """The counts for a process; None if the kernel does not count, or the process is gone."""
    words = (read("/proc/%d/schedstat" % pid) or "").split()
    return CpuTime(*map(int, words)) if len(words) == 3 and all(word.isdecimal() for word in words) else None


def cpu_wait_share(before: CpuTime | None, after: CpuTime | None, seconds: float, runnable: bool) -> float | None:
    """The part of `seconds` for which a process waited for a CPU. `runnable`: it was ready to run before and after. The
    kernel counts a wait only once it is over, so a process that never got a CPU is judged by that alone."""
    if before is None or after is None:
        return None
    if runnable and after.turns == before.turns:
        return round(max(0.0, 1.0 - (after.ran_s - before.ran_s) / max(0.01, seconds)), 2)
    return round(min(1.0, (after.waited_s - before.waited_s) / max(0.01, seconds)), 2)


def process_and_descendants(pid: int) -> list[int]:
    """A process and its descendants, MAX_FAMILY_PROCESSES at most."""
    found = [pid]
    for one in found:
        if len(found) < MAX_FAMILY_PROCESSES:
            found += [int(child) for child in (read("/proc/%d/task/%d/children" % (one, one)) or "").split()]
    return found[:MAX_FAMILY_PROCESSES]


class CpuQuota:
    """The kernel's counts for a control group with a CPU quota: `allowed_us` in each period of `period_us`; `spent`,
    the periods in which that was used up; `held_us`, how long its CPUs were held back then, summed over the CPUs."""

    __slots__ = ("allowed_us", "held_us", "period_us", "spent")

    def __init__(self, allowed_us: int, period_us: int, spent: int, held_us: int) -> None:
        self.allowed_us = allowed_us
        self.period_us = period_us
        self.spent = spent
        self.held_us = held_us


def throttled_us(those: Iterable[int]) -> int | None:
    """The microseconds for which the control group of a process was held back so far; the most of these processes."""
    quotas = [cpu_quota(pid) for pid in those]
    return max((one.held_us for one in quotas if one is not None), default=None)


def throttled_share(before: CpuQuota | None, after: CpuQuota | None, seconds: float) -> float | None:
    """The part of `seconds` for which a quota kept its processes from running: the part that lay in periods in which it
    was used up, times the refused part of the CPU time that the processes wanted there. (On many CPUs, a group may lose
    a little of each in every period.)"""
    if before is None or after is None:
        return None
    spent, held_us = max(0, after.spent - before.spent), max(0, after.held_us - before.held_us)
    wanted_us = spent * after.allowed_us + held_us
    refused = held_us / wanted_us if wanted_us else 0.0
    return round(min(1.0, spent * after.period_us / 1e6 / max(0.01, seconds)) * refused, 2)


def cpu_quota(pid: int) -> CpuQuota | None:
    """The quota of a process's innermost control group that has one, in cgroup v1 or v2; None without any."""
    return next(filter(None, map(group_cpu_quota, control_group_folders(pid, "cpu"))), None)


def group_cpu_quota(folder: str) -> CpuQuota | None:
    """The quota of the control group in this folder, or None."""
    first = [read(os.path.join(folder, "cpu.cfs_%s_us" % what)) or "" for what in ("quota", "period")]
    words = (read(os.path.join(folder, "cpu.max")) or "").split() or first
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        return None  # `max`, -1, or no such group
    counted = dict(re.findall(r"^(\w+) (\d+)$", read(os.path.join(folder, "cpu.stat")) or "", re.MULTILINE))
    held_us = counted.get("throttled_usec") or int(counted.get("throttled_time", 0)) // 1000
    return CpuQuota(int(words[0]), int(words[1]), int(counted.get("nr_throttled", 0)), int(held_us))
