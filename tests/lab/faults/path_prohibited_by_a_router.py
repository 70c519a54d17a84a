"""Two subnets, and the router between them rejects everything: neither node has a rule of its own."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, filter_rule, routed


def breaks(lab: Lab) -> None:
    routed(lab)
    filter_rule(lab["node-c"], "reject with icmp admin-prohibited", "forward")


FAULT = Fault(
    hosts=3,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network("node-a", "node-b"),
    stage="ping",
    cause="firewall-reject",
    nodes=("node-a", "node-b"),
    says=(r"10\.44\.[12]\.254",),
    within_s=6,
)
