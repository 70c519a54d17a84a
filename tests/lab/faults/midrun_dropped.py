"""A rule appears in the middle of an AllReduce and drops what the ranks send to one node."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike, filter_rule

FAULT = Fault(
    strike=Strike(lambda lab: filter_rule(lab["node-b"], "tcp dport != 22 drop")),
    arguments=LONG,
    stage="full",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"tcp dport != 22 drop",),
    torchrun=True,
    within_s=10,
)
