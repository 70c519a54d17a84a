"""One of eight ranks on four hosts is killed: one cause, whatever the other seven say."""

from __future__ import annotations

import signal

from lab import Lab
from lab.fault import Fault, Strike


def kill_one(lab: Lab) -> None:
    host = lab["node-c"]
    victim = next(pid for pid, command in host.processes() if "rank.py" in command)
    host.signal(victim, signal.SIGKILL)


FAULT = Fault(
    strike=Strike(kill_one),
    inventory=lambda lab: {"defaults": {"processes": 2}},
    arguments=("-e", "max_bytes=32M", "-e", "budget=40s", "-e", "iterations=2000"),
    hosts=4,
    stage="full",
    cause="rank-killed",
    nodes="node-c",
    says=(r"SIGKILL",),
    within_s=4,
)
