"""The interface of one node has IPv6 only, those of the others IPv4 only."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-c"].ip("addr flush dev eth1", "addr add fd00:44::3/64 dev eth1 nodad")
    lab["node-c"].data_addresses = ["fd00:44::3"]


FAULT = Fault(
    hosts=3,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="ipv6-ipv4-mixing",
    nodes="node-c",
    says=(r"fd00:44::3", r"IPv4"),
    within_s=5,
)
