"""The interface of the inventory is called something else on one node."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip("link set eth1 down", "link set eth1 name enp65s0f1", "link set enp65s0f1 up")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="reach",
    cause="interface-missing",
    nodes="node-b",
    says=(r"node-b has no interface eth1", r"enp65s0f1"),
    within_s=4,
)
