"""Two machines of the cluster carry one address: the second is a clone of the first."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].ip(f"addr add {lab['node-a'].data_addresses[0]}/24 dev eth1")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="duplicate-address",
    nodes="node-b",
    says=(r"node-a and node-b|node-b and node-a", r"10\.44\.0\.1"),
    mends=True,
    within_s=5,
)
