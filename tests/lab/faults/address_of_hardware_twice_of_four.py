"""Two machines of four have the same hardware address: what the others lose on their way to either follows from it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    for name in ("node-b", "node-d"):
        lab[name].ip("link set eth1 address 02:aa:aa:aa:aa:aa")


FAULT = Fault(
    hosts=4,
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="duplicate-address",
    nodes="node-d",
    says=(r"node-b and node-d have one hardware address",),
    mends=True,
    within_s=10,
)
