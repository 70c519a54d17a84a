"""What one node sends lives for one hop, and a router stands between."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, routed


def breaks(lab: Lab) -> None:
    routed(lab)
    lab["node-b"].knob("net.ipv4.ip_default_ttl", 1)


FAULT = Fault(
    hosts=3,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network("node-a", "node-b"),
    stage="ping",
    cause="host-unreachable",
    nodes="node-b",
    says=(r"live for 1 hop \(net\.ipv4\.ip_default_ttl\)",),
    mends=True,
    within_s=8,
)
