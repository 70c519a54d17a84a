"""The cable of one node of three loses 5 % of the packets."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=3,
    breaks=lambda lab: lab["node-b"].lose(5),
    stage="ping",
    cause="packet-loss",
    nodes="node-b",
    says=(r"node-a", r"node-c", r"\d %"),
    within_s=8,
)
