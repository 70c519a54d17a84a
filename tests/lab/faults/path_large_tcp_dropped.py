"""A rule on one node drops TCP segments over 1400 bytes: ping notices nothing."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "ip protocol tcp meta length > 1400 drop"),
    stage="ping",
    cause="mtu-blackhole",
    nodes="node-b",
    says=(r"ip protocol tcp meta length > 1400 drop",),
    mends=True,
    within_s=8,
)
