"""Data ports are closed in one direction only: node-b may not dial node-a, node-a may dial node-b."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(
        lab["node-a"], f"ip saddr {lab['node-b'].address} tcp dport 32768-60999 ct state new drop"
    ),
    stage="firewall",
    cause="data-ports-blocked",
    nodes="node-a",
    says=(r"tcp dport 32768-60999 ct state new drop",),
    mends=True,
    torchrun=True,
    quick=True,
    within_s=7,
)
