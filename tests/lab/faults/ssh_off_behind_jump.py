"""The jump host is fine; on the node behind it no sshd runs."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].stop_sshd(),
    inventory=lambda lab: {
        "nodes": {"node-c": None, "node-b": {"ssh": {"jump": f"{lab.user}@{lab['node-c'].address}"}}}
    },
    hosts=3,
    stage="reach",
    cause="ssh-refused",
    nodes="node-b",
    says=(r"jump host",),
    unreachable=True,
    within_s=6,
)
