"""A policy rule on one node sends what comes from its address to a table without a way."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    host = lab["node-b"]
    host.ip(
        *(f"route add {lab.bridge_address}/32 dev eth0 table 77", "route add unreachable default table 77"),
        f"rule add from {host.address} lookup 77",
    )


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"unreachable default", r"77"),
    mends=True,
    within_s=6,
)
