"""A rule on the master drops what arrives at the rendezvous port."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-a"], "tcp dport 29500 drop"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"tcp dport 29500 drop",),
    mends=True,
    torchrun=True,
    quick=True,
    within_s=8,
)
