"""The interface that the inventory names is down on one node."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip("link set eth1 down")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="reach",
    cause="interface-missing",
    nodes="node-b",
    says=(r"eth1 of node-b is down",),
    mends=True,
    quick=True,
    within_s=4,
)
