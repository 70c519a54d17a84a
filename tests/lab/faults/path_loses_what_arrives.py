"""One node of three loses a tenth of what arrives, and nothing of what it sends."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=3,
    breaks=lambda lab: lab["node-c"].lose(10, "to"),
    stage="ping",
    cause="packet-loss",
    nodes="node-c",
    says=(r"node-c and each of node-a and node-b are lost", r"packets sent again"),
    within_s=10,
)
