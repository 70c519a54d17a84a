"""Two machines made of one image have the same hardware address."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    for host in lab:
        host.ip("link set eth1 address 02:aa:aa:aa:aa:aa")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="duplicate-address",
    nodes="node-b",
    says=(r"node-a and node-b have one hardware address, 02:aa:aa:aa:aa:aa",),
    mends=True,
    within_s=8,
)
