"""The master lets requests in and drops its own answers: what leaves from the rendezvous port."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-a"], "tcp sport 29500 drop", hook="output"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"drops its own answers", r"tcp sport 29500 drop"),
    mends=True,
    within_s=7,
)
