"""Connections open, and what carries data is dropped: segments that have PSH."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-a"], "tcp dport 29500-65535 tcp flags & psh == psh drop"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"psh",),
    mends=True,
    within_s=20,
)
