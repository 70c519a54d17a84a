"""One node would answer by another interface than the packets come in by, and its strict rp_filter drops them."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.data_network()
    host = lab["node-b"]
    host.ip(f"route add {lab['node-a'].data_addresses[0]}/32 dev eth0")
    host.knob("net.ipv4.conf.eth1.rp_filter", 1)


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="host-unreachable",
    nodes="node-b",
    says=(r"rp_filter", r"eth0", r"eth1"),
    mends=True,
    within_s=8,
)
