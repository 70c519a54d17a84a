"""No known_hosts file has the node's key."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab.forget(lab["node-b"]),
    stage="reach",
    cause="ssh-host-key-unknown",
    nodes="node-b",
    says=(r"ssh-keyscan",),
    unreachable=True,
    within_s=6,
)
