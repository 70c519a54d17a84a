"""The jump host does not take our key."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-c"].write("~/.ssh/authorized_keys", "", mode=0o600, user=lab.user),
    inventory=lambda lab: {
        "nodes": {"node-c": None, "node-b": {"ssh": {"jump": f"{lab.user}@{lab['node-c'].address}"}}}
    },
    hosts=3,
    stage="reach",
    cause="ssh-jump-failed",
    nodes="node-b",
    says=(
        r"jump host",
        r"ssh-auth-failed",
    ),
    unreachable=True,
    within_s=6,
)
