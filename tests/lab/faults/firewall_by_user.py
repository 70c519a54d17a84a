"""The dialling node drops what this one user sends."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, filter_rule


def rule(lab: Lab) -> None:
    filter_rule(lab["node-b"], f"meta skuid {lab.uid} tcp dport 29500 drop", hook="output")


FAULT = Fault(
    breaks=rule,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"meta skuid",),
    mends=True,
    within_s=7,
)
