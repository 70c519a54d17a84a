"""The .bashrc never ends."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("~/.bashrc", "sleep 1000\n", user=lab.user),
    stage="reach",
    cause="ssh-timeout",
    nodes="node-b",
    says=(r"login shell",),
    unreachable=True,
    within_s=20,
)
