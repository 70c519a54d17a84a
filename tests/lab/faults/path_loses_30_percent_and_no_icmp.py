"""30 % of the packets between two nodes are lost, and pings are blocked, which alone would be harmless."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault, filter_rule


def breaks(lab: Lab) -> None:
    filter_rule(lab["node-b"], "ip protocol icmp drop")
    for host in lab:
        host.lose(16)


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="packet-loss",
    nodes=EVERY,
    says=(r"no echo comes back",),
    within_s=20,
)
