"""A firewall on the node drops what arrives at its SSH port."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "tcp dport 22 drop"),
    stage="reach",
    cause="ssh-unreachable",
    nodes="node-b",
    says=(r"TCP 22",),
    unreachable=True,
    within_s=10,
)
