"""Control groups of this machine's kernel, for processes on a host of the lab that are to have less of a CPU."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

from .memory import ROOT
from .processes import LabError

PERIOD_US = 100_000


@contextlib.contextmanager
def limited_cpu(pids: Iterable[int], share: float) -> Iterator[None]:
    """While it lasts these processes have this share of one CPU, together. They may end meanwhile."""
    second = (ROOT / "cgroup.controllers").exists()
    group = (ROOT if second else ROOT / "cpu") / f"runbook-lab-cpu-{os.getpid()}"
    quota = int(share * PERIOD_US)
    try:
        group.mkdir(exist_ok=True)
        if second:
            (group / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise LabError(f"this machine's control groups cannot be used: {error}") from error
    try:
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):  # it has just ended
                (group.parent / "cgroup.procs").write_text(left)
        group.rmdir()
