"""One node has lost the route to its own network."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].ip(f"route add {lab.bridge_address}/32 dev eth0", f"route del {lab.subnet} dev eth0")


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"no route to node-a",),
    mends=True,
    torchrun=True,
    within_s=6,
)
