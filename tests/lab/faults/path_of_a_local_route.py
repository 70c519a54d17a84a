"""A leftover route of a load balancer: the master takes the other node's address for one of its own."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].ip(f"route add local {lab['node-b'].address}/32 dev lo"),
    stage="ping",
    cause="no-route",
    nodes="node-a",
    says=(r"for one of its own", r"type `local`"),
    mends=True,
    within_s=6,
)
