"""One node of three sends jumbo frames, the others and the switch carry 1500 bytes."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=3,
    breaks=lambda lab: lab["node-c"].ip("link set eth0 mtu 9000"),
    stage="ping",
    cause="mtu-blackhole",
    nodes="node-c",
    says=(r"9000 on node-c", r"1500"),
    mends=True,
    within_s=12,
)
