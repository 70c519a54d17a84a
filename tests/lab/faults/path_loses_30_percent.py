"""30 % of the packets between two nodes are lost: nothing tells by whom."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault


def breaks(lab: Lab) -> None:
    for host in lab:
        host.lose(16)


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="packet-loss",
    nodes=EVERY,
    says=(r"\d\d %",),
    torchrun=True,
    within_s=12,
)
