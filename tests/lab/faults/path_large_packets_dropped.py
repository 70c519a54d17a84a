"""A rule on one node drops every packet over 1400 bytes, TCP and ICMP alike."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "meta length > 1400 drop"),
    stage="ping",
    cause="mtu-blackhole",
    nodes="node-b",
    says=(r"meta length > 1400 drop",),
    mends=True,
    torchrun=True,
    quick=True,
    within_s=8,
)
