"""A node loses its power: every process ends at once, and nothing is sent any more."""

from __future__ import annotations

import contextlib
import signal

from lab import Lab
from lab.fault import LONG, Fault, Strike
from lab.processes import LabError


def power_off(lab: Lab) -> None:
    host = lab["node-b"]
    host.cut()
    for pid, _ in host.processes():
        with contextlib.suppress(LabError):  # a rank ends with its supervisor
            host.signal(pid, signal.SIGKILL)
    host.stop_sshd(sessions=True)


FAULT = Fault(
    strike=Strike(power_off),
    arguments=LONG,
    hosts=3,
    stage="full",
    cause="ssh-unreachable",
    nodes="node-b",
    unreachable=True,
    within_s=15,
)
