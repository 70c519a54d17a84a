"""Every node sends jumbo frames, the switch between them carries 1500 bytes and says nothing."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault


def breaks(lab: Lab) -> None:
    for host in lab:
        host.ip("link set eth0 mtu 9000")


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="mtu-blackhole",
    nodes=EVERY,
    says=(r"9000",),
    torchrun=True,
    within_s=8,
)
