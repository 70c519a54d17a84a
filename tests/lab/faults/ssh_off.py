"""No sshd runs on the node."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].stop_sshd(),
    stage="reach",
    cause="ssh-refused",
    nodes="node-b",
    says=(r"port 22",),
    unreachable=True,
    quick=True,
    within_s=6,
)
