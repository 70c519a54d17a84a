"""30 % of the packets between two nodes are lost: nothing tells by whom."""

from __future__ import annotations

from lab.fault import EVERY, Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].lose(30),
    stage="ping",
    cause="packet-loss",
    nodes=EVERY,
    says=(r"\d\d %",),
    torchrun=True,
    within_s=12,
)
