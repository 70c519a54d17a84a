"""One node of three has its address in another subnet than the others, and no route there."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    host = lab["node-c"]
    host.ip("addr flush dev eth1", "addr add 10.44.9.3/24 dev eth1")
    host.data_addresses = ["10.44.9.3"]


FAULT = Fault(
    hosts=3,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="no-route",
    nodes="node-c",
    says=(r"10\.44\.9\.3/24", r"10\.44\.0\.0/24"),
    within_s=6,
)
