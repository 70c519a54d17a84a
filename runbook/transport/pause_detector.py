"""Whether the controller itself was running: the silence of a node and a missed deadline count only while it was.

A thread calls `Awake.tick` at a fixed interval; a late tick means that this machine slept, that runbook was stopped, or
that other processes had the CPU. `Pace` lets logins and questions begin no faster than this machine keeps up with."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MIN_PAUSE_S = 0.5
"""The shortest pause that is remembered, in seconds. A busy machine wakes a thread some hundredths of a second late."""

MAX_PAUSES = 100
"""The most pauses that are remembered."""

_SUSPEND_CLOCK = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""A clock that goes on while the machine is suspended, if there is one; `time.monotonic` stands still then, on Linux as
on macOS."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which this process did not run. `seconds` is its length; for `asleep_s` of them the machine was
    suspended. `ended` is on the monotonic clock."""

    seconds: float
    asleep_s: float
    ended: float

    def __str__(self) -> str:
        if self.asleep_s > self.seconds / 2:
            return f"this machine slept for {self.seconds:.0f} s"
        return f"this machine gave runbook no CPU for {self.seconds:.0f} s, or it was stopped"


class Awake:
    """The pauses of this process. One thread calls `tick` every `every_s` seconds; any thread may call the other
    methods."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._last = time.monotonic(), _clock_with_suspend()
        self._pauses: deque[Pause] = deque(maxlen=MAX_PAUSES)

    def tick(self) -> float:
        """The seconds by which this tick is late; a pause longer than MIN_PAUSE_S is remembered."""
        pause = self._under_way()
        self._last = time.monotonic(), _clock_with_suspend()
        if pause.seconds > MIN_PAUSE_S:
            self._pauses.append(pause)
        return pause.seconds

    def longest(self, since: float) -> Pause:
        """The longest pause that ended after `since` (on the monotonic clock), or that has not ended yet."""
        ended = (one for one in tuple(self._pauses) if one.ended > since)
        return max((self._under_way(), *ended), key=lambda pause: pause.seconds)

    def _under_way(self) -> Pause:
        """The pause since the last tick, as far as it lasts now."""
        monotonic, with_sleep = self._last
        now, passed = time.monotonic(), _clock_with_suspend() - with_sleep
        return Pause(max(0.0, passed - self._every_s), max(0.0, passed - (now - monotonic)), now)


def _clock_with_suspend() -> float:
    """The time on a clock that also counts while the machine is suspended, if there is one."""
    return time.monotonic() if _SUSPEND_CLOCK is None else time.clock_gettime(_SUSPEND_CLOCK)


CPU_PRESSURE_FILE = Path("/proc/pressure/cpu")
CPU_PRESSURE_SHARE = re.compile(r"some avg10=([0-9.]+)")


def cpu_pressure_evidence() -> tuple[str, ...]:
    """A line of evidence with the kernel's own measure of how short of CPU this machine is (/proc/pressure/cpu); empty
    when the kernel keeps none."""
    with contextlib.suppress(OSError, IndexError):
        return (f"{CPU_PRESSURE_FILE} here: {CPU_PRESSURE_FILE.read_text().splitlines()[0]}",)
    return ()


def cpu_pressure_percent() -> float:
    """The share of the last ten seconds in which at least one process on this machine waited for a CPU, in per cent; 0
    when it is unknown."""
    share = CPU_PRESSURE_SHARE.search("".join(cpu_pressure_evidence()))
    return float(share[1]) if share else 0.0


PROBE_SLEEP_S = 0.001
"""The sleep by which `Pace` tests whether this machine keeps up."""

MAX_LATENESS_S = 0.02
"""The machine does not keep up when that sleep ends later than this. Each thread of ours that computes delays a waking
thread by some 5 ms (sys.getswitchinterval), and another process by a time slice."""

MIN_UNDER_WAY = 4
"""This many logins or questions may be under way without a test: even a machine with one core meets their deadlines."""

MAX_LOGIN_WAIT_S = 5.0
"""The longest that a login waits for another one to end before it begins."""

MAX_QUESTION_WAIT_S = 1.0
"""The longest that a question to a node waits for another one to end before it begins."""


class Pace:
    """Lets logins and questions begin as fast as this machine keeps up with: when a short sleep ends late, one that is
    under way has to end first. So no deadline is missed because hundreds of others began at the same moment."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._change = threading.Condition()
        self._under_way = 0
        self._over = 0

    @contextlib.contextmanager
    def turn(self, most_wait_s: float = MAX_LOGIN_WAIT_S) -> Iterator[None]:
        """A context for one login or question: waits up to `most_wait_s` for its turn, and counts as under way
        inside."""
        with self._door:
            if self._under_way >= MIN_UNDER_WAY:
                begun = time.monotonic()
                time.sleep(PROBE_SLEEP_S)
                late = time.monotonic() - begun - PROBE_SLEEP_S > MAX_LATENESS_S
                with self._change:
                    over = self._over
                    if late:
                        self._change.wait_for(lambda: self._under_way < MIN_UNDER_WAY or self._over > over, most_wait_s)
            with self._change:
                self._under_way += 1
        try:
            yield
        finally:
            with self._change:
                self._under_way -= 1
                self._over += 1
                self._change.notify_all()
