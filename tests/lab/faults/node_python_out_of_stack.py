"""A limit of a startup file leaves programs a stack of 64 KiB: every Python is there, and crashes as it starts."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("~/.bashrc", "ulimit -s 64\n", user=lab.user),
    stage="reach",
    cause="python-missing",
    nodes="node-b",
    says=(r"SIGSEGV ends each", r"ulimit -s"),
    within_s=6,
)
