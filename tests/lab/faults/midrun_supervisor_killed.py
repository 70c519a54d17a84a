"""Our own supervisor on the master is killed: its node is lost to us, and what it had started ends."""

from __future__ import annotations

import signal

from lab import Lab
from lab.fault import LONG, Fault, Strike


def kill_supervisor(lab: Lab) -> None:
    host = lab["node-a"]
    for pid, command in host.processes(user=lab.user):
        if "rank.py" not in command and "python" in command:
            host.signal(pid, signal.SIGKILL)


FAULT = Fault(
    strike=Strike(kill_supervisor),
    arguments=LONG,
    stage="full",
    cause="ssh-unreachable",
    nodes="node-a",
    unreachable=True,
    within_s=4,
)
