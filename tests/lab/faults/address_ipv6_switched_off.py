"""IPv6 is switched off on one node of an IPv6 cluster: its address is gone, and none can be added."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network("fd00:44::/64")
    lab["node-b"].knob("net.ipv6.conf.eth1.disable_ipv6", 1)


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="reach",
    cause="interface-missing",
    nodes="node-b",
    says=(r"disable_ipv6 = 1",),
    mends=True,
    within_s=4,
)
