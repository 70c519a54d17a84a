"""Control groups of this machine's kernel, for processes on a host of the lab that are to run out of memory."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from .host import Host
from .processes import LabError

ROOT = Path("/sys/fs/cgroup")


def limit_memory(host: Host, pids: Iterable[int], limit: int) -> None:
    """From now on these processes may take so many bytes more, together, and not swap. Returns when they have ended."""
    second = (ROOT / "cgroup.controllers").exists()
    group = (ROOT if second else ROOT / "memory") / f"runbook-lab-{os.getpid()}-{host.name}"
    try:
        group.mkdir(exist_ok=True)
        (group / ("memory.max" if second else "memory.limit_in_bytes")).write_text(str(limit))
        with contextlib.suppress(OSError):  # no swap there, or none that is counted
            (group / ("memory.swap.max" if second else "memory.swappiness")).write_text("0")
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise LabError(f"this machine's control groups cannot be used: {error}") from error
    deadline = time.monotonic() + 15
    while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    group.rmdir()
