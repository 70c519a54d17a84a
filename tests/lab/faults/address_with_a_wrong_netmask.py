"""One node's netmask is too narrow: its peers are outside of what it takes for its network."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip("addr flush dev eth1", "addr add 10.44.0.2/31 dev eth1")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"10\.44\.0\.2/31", r"/24"),
    mends=True,
    within_s=6,
)
