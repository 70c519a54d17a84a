"""The node that dials drops what it sends itself: the master's rules are innocent."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "tcp dport 29500 drop", hook="output"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"node-b drops its own outgoing TCP 29500",),
    mends=True,
    torchrun=True,
    within_s=7,
)
