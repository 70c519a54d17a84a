"""The master answers the rendezvous port with an ICMP error."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-a"], "tcp dport 29500 reject with icmp type admin-prohibited"),
    stage="firewall",
    cause="firewall-reject",
    nodes="node-a",
    says=(r"rejects TCP 29500 .*with an ICMP error", r"admin-prohibited"),
    mends=True,
    torchrun=True,
    within_s=7,
)
