"""The master answers the rendezvous port with a TCP reset, as if nothing listened there."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-a"], "tcp dport 29500 reject with tcp reset"),
    stage="firewall",
    cause="firewall-reject",
    nodes="node-a",
    says=(r"rejects TCP 29500 .*with a TCP reset", r"tcp dport 29500 reject with tcp reset"),
    mends=True,
    torchrun=True,
    within_s=7,
)
