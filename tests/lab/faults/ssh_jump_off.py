"""The jump host runs no sshd."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-c"].stop_sshd(),
    inventory=lambda lab: {
        "nodes": {"node-c": None, "node-b": {"ssh": {"jump": f"{lab.user}@{lab['node-c'].address}"}}}
    },
    hosts=3,
    stage="reach",
    cause="ssh-jump-failed",
    nodes="node-b",
    says=(
        r"jump host",
        r"ssh-refused",
    ),
    unreachable=True,
    quick=True,
    within_s=6,
)
