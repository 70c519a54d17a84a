"""A hardware address of the master that somebody wrote into the ARP table by hand is no longer true."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].ip(f"neigh replace {lab['node-a'].address} lladdr 02:00:00:00:00:99 dev eth0 nud permanent")


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="host-unreachable",
    nodes="node-b",
    says=(r"fixed ARP entry",),
    mends=True,
    within_s=6,
)
