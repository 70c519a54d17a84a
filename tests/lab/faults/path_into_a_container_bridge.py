"""A bridge of containers on one node has a network that takes in the addresses of its peers: it sends to them there."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-c"].ip("link add docker0 type bridge", "addr add 10.44.0.100/25 dev docker0", "link set docker0 up")


FAULT = Fault(
    hosts=4,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="no-route",
    nodes="node-c",
    says=(r"out of docker0, not of eth1: docker0 has 10\.44\.0\.100/25", r"bip"),
    within_s=10,
)
