"""Which rank made a launcher fail: torchrun exits with 1 whatever it was, and says in its own log what it saw."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.kept import KeptProcess, KeptProcesses

WORKER = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+)")
MOST = 1 << 20


def failed_worker(kept: KeptProcesses, member: KeptProcess) -> tuple[ProcessSpec, int] | None:
    """The rank whose end the launcher saw first, and its exit code (negative: a signal); None where it names none."""
    try:
        with (kept.logs.folder / f"{member.place.name}.err").open("rb") as file:
            found = WORKER.search(file.read(MOST))
    except OSError:
        return None
    if found is None or int(found[2]) >= len(member.place.each):
        return None
    return member.place.each[int(found[2])], int(found[1])


def first_of_launchers(kept: KeptProcesses, first: KeptProcess, failed: Sequence[KeptProcess]) -> KeptProcess:
    """Launchers look at their ranks now and then, so the one that ended first need not be the one whose rank did. A rank that
    was ended by a signal is no consequence of another's error, the other way round it often is."""
    for member in failed:
        worker = failed_worker(kept, member) if member.place.each else None
        if worker and worker[1] < 0 and worker[1] != -signal.SIGTERM:
            return member
    return first
