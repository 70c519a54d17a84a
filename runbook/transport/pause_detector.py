"""Whether this machine was awake: silence of a node and a missed deadline count only while this process ran. A thread
that waits for nodes ticks here at a fixed interval; a late tick means that this machine slept, the process was stopped,
or others had the CPU."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NOTED_S = 0.5
"""The least lateness that is remembered. A busy machine wakes a thread some hundredths of a second late."""

REMEMBERED = 100

_ASLEEP_TOO = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""A clock that goes on while the machine is suspended; `time.monotonic` stands still then, on Linux as on macOS."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which this process did not run: its length and how much of it the machine was suspended, in seconds.
    `ended` is on the monotonic clock."""

    seconds: float
    asleep_s: float
    ended: float

    def __str__(self) -> str:
        if self.asleep_s > self.seconds / 2:
            return f"this machine slept for {self.seconds:.0f} s"
        return f"this machine gave runbook no CPU for {self.seconds:.0f} s, or it was stopped"


class Awake:
    """How late this process runs. `tick` is for one thread, which calls it every `every_s` seconds; the rest for
    any."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last = time.monotonic(), _now()
        self._pauses: deque[Pause] = deque(maxlen=REMEMBERED)

    def tick(self) -> float:
        """Seconds by which this tick is late."""
        pause = self._under_way()
        self._last = time.monotonic(), _now()
        if pause.seconds > NOTED_S:
            self._pauses.append(pause)
        return pause.seconds

    def longest(self, since: float) -> Pause:
        """The longest pause that ended after `since`, on the monotonic clock, or has not ended yet."""
        ended = (one for one in tuple(self._pauses) if one.ended > since)
        return max((self._under_way(), *ended), key=lambda pause: pause.seconds)

    def _under_way(self) -> Pause:
        monotonic, with_sleep = self._last
        now, passed = time.monotonic(), _now() - with_sleep
        return Pause(max(0.0, passed - self._every_s), max(0.0, passed - (now - monotonic)), now)


def _now() -> float:
    return time.monotonic() if _ASLEEP_TOO is None else time.clock_gettime(_ASLEEP_TOO)


PRESSURE = Path("/proc/pressure/cpu")
SHARE = re.compile(r"some avg10=([0-9.]+)")


def cpu_pressure() -> tuple[str, ...]:
    """The kernel's own account of how short of CPU this machine is, as a line of evidence; none where it keeps none."""
    with contextlib.suppress(OSError, IndexError):
        return (f"{PRESSURE} here: {PRESSURE.read_text().splitlines()[0]}",)
    return ()


def short_of_cpu() -> float:
    """The share of the last ten seconds in which a process on this machine waited for a CPU, in per cent; 0 when
    unknown."""
    share = SHARE.search("".join(cpu_pressure()))
    return float(share[1]) if share else 0.0


PROBE_S = 0.001
LATE_S = 0.02
"""Threads of ours that compute each hold a waking one up for some 5 ms (sys.getswitchinterval); other processes by a
time slice."""

AT_LEAST = 4
"""Up to this many under way are never delayed: even a machine with one core meets the deadlines of so few."""

MOST_WAIT_S = 5.0
ASKING_WAIT_S = 1.0
"""The longest wait for another one to end before a login, or a question to a node, begins."""


class Pace:
    """Lets work begin as fast as this machine keeps up: when a short sleep ends late, another one has to end first. So
    no deadline is missed because hundreds of others began at the same moment."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._change = threading.Condition()
        self._under_way = 0
        self._over = 0

    @contextlib.contextmanager
    def turn(self, most_wait_s: float = MOST_WAIT_S) -> Iterator[None]:
        with self._door:
            if self._under_way >= AT_LEAST:
                begun = time.monotonic()
                time.sleep(PROBE_S)
                late = time.monotonic() - begun - PROBE_S > LATE_S
                with self._change:
                    over = self._over
                    if late:
                        self._change.wait_for(lambda: self._under_way < AT_LEAST or self._over > over, most_wait_s)
            with self._change:
                self._under_way += 1
        try:
            yield
        finally:
            with self._change:
                self._under_way -= 1
                self._over += 1
                self._change.notify_all()
