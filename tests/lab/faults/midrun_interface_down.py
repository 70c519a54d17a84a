"""Somebody switches off the interface that the job uses, in the middle of an AllReduce."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike

FAULT = Fault(
    breaks=lambda lab: lab.data_network(),
    inventory=lambda lab: lab.over_data_network(),
    strike=Strike(lambda lab: lab["node-b"].ip("link set eth1 down")),
    arguments=LONG,
    stage="full",
    cause="interface-missing",
    nodes="node-b",
    says=(r"eth1 of node-b is down",),
    within_s=8,
)
