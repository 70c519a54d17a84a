"""The interface that the inventory names has no address on one node."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip("addr flush dev eth1")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="reach",
    cause="interface-missing",
    nodes="node-b",
    says=(
        r"eth1 of node-b has no address",
        r"address add 10\.44\.0\.2/24 dev eth1",
    ),
    within_s=4,
)
