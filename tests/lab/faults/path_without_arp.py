"""ARP is switched off on one node's interface."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip("link set eth1 arp off")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="host-unreachable",
    nodes="node-b",
    says=(r"NOARP",),
    mends=True,
    within_s=7,
)
