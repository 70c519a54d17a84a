"""On one node the master's name means its IPv4 address and an IPv6 address that nobody has, which is dialled first."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network("10.44.0.0/24", "fd00:44::/64")
    lab["node-b"].set_hosts("fd00:44::77 node-a\n10.44.0.1 node-a\n10.44.0.2 node-b")
    lab["node-a"].set_hosts("10.44.0.1 node-a\n10.44.0.2 node-b")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: {**lab.over_data_network(), "rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-wrong-address",
    nodes="node-b",
    says=(r"fd00:44::77, which is dialled first",),
    mends=True,
    within_s=5,
)
