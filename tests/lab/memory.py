"""Control groups of this machine's kernel, for processes on a host of the lab that are to run out of memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from .host import Host
from .processes import LabError

ROOT = Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit: int, name: str = "") -> Iterator[Path]:
    """A control group of so many bytes, without swap: its list of processes, to join it. They have ended when the block
    does."""
    second = (ROOT / "cgroup.controllers").exists()
    group = (ROOT if second else ROOT / "memory") / f"runbook-lab-{os.getpid()}{name}"
    try:
        group.mkdir(exist_ok=True)
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
        with contextlib.suppress(OSError):  # no swap there, or none that is counted
            (group / ("memory.swap.max" if second else "memory.swappiness")).write_text("0")
    except OSError as error:
        raise LabError(f"this machine's control groups cannot be used: {error}") from error
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def limit_memory(host: Host, pids: Iterable[int], limit: int) -> None:
    """From now on these processes may take so many bytes more, together, and not swap. Returns when they have ended."""
    with memory_group(limit, f"-{host.name}") as processes:
        for pid in pids:
            processes.write_text(str(pid))
        deadline = time.monotonic() + 15
        while processes.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
