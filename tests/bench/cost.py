"""What running a program costs: wall time, CPU of its process tree, memory. Every run has a deadline."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

KIB = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there


class BenchError(RuntimeError):
    """Something could not be measured: a tool failed, did less than it was asked, or did not end."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`cpu_s` is user and system time of the program and of every child it waited for; `peak_bytes` is the resident
    memory of the largest process among them, and at least this process's own, which the kernel counts from the fork."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def measure(name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, log: Path, deadline_s: float) -> Cost:
    """Run a program of this machine to its end. Raises BenchError when it fails or takes longer than the deadline."""
    with log.open("wb") as out:
        begun = time.monotonic()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
        alarm = threading.Timer(deadline_s, _kill_group, (process.pid,))
        alarm.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
            wall = time.monotonic() - begun
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            alarm.cancel()
            _kill_group(process.pid)  # what it left in its own group goes with it, however this ends
    if wall >= deadline_s:
        raise BenchError(f"{name} did not end within {deadline_s:g} s{tail(log)}")
    if process.returncode != 0:
        raise BenchError(f"{name} ended with {process.returncode}{tail(log)}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * KIB)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-15:]
    return "".join(f"\n    {line}" for line in lines)


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each number by itself."""
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        int(statistics.median(cost.peak_bytes for cost in costs)),
    )
