"""A rule appears that resets established connections and lets new ones in."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike, filter_rule

RULE = "tcp dport != 22 ct state established reject with tcp reset"

FAULT = Fault(
    strike=Strike(lambda lab: filter_rule(lab["node-b"], RULE)),
    arguments=LONG,
    stage="full",
    cause="firewall-reject",
    nodes="node-b",
    says=(r"ct state established reject with tcp reset",),
    torchrun=True,
    within_s=8,
)
