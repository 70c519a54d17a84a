"""A firewall on the node answers at its SSH port that this is forbidden, as many distributions do by default."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "tcp dport 22 reject with icmp type admin-prohibited"),
    stage="reach",
    cause="ssh-unreachable",
    nodes="node-b",
    says=(r"firewall",),
    unreachable=True,
    quick=True,
    within_s=6,
)
