"""The master drops what one of three nodes sends: only that pair is told."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-a"], f"ip saddr {lab['node-c'].address} tcp dport 29500-65535 drop"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    hosts=3,
    says=(r"peers +node-c\n",),
    mends=True,
    within_s=8,
)
