"""What node-a may send to node-b ends after 3 MB: everything works, until the job has sent that much."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(
        lab["node-b"], f"ip saddr {lab['node-a'].address} tcp dport != 22 quota over 3 mbytes drop"
    ),
    stage="full",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"quota over 3 mbytes",),
    within_s=14,
)
