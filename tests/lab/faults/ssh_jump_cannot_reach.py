"""A firewall on the node drops what the jump host sends to its SSH port, and nothing else."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], f"ip saddr {lab['node-c'].address} tcp dport 22 drop"),
    inventory=lambda lab: {
        "nodes": {"node-c": None, "node-b": {"ssh": {"jump": f"{lab.user}@{lab['node-c'].address}"}}}
    },
    hosts=3,
    stage="reach",
    cause="ssh-jump-failed",
    nodes="node-b",
    says=(
        r"jump host",
        r"answers this machine directly",
    ),
    unreachable=True,
    within_s=12,
)
