"""A node gets another address in the middle of an AllReduce, as from a DHCP server."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike

FAULT = Fault(
    breaks=lambda lab: lab.data_network(),
    inventory=lambda lab: lab.over_data_network(),
    strike=Strike(lambda lab: lab["node-b"].ip("addr del 10.44.0.2/24 dev eth1", "addr add 10.44.0.77/24 dev eth1")),
    arguments=LONG,
    stage="full",
    cause="interface-missing",
    nodes="node-b",
    says=(r"has lost its address 10\.44\.0\.2: eth1 now has 10\.44\.0\.77",),
    within_s=8,
)
