"""One node has a leftover route to the master by a gateway that is gone, though both are in one network."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].ip(f"route add {lab['node-a'].address}/32 via {lab.subnet[123]}"),
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"to the gateway 10\.\d+\.\d+\.123, which does not answer",),
    mends=True,
    within_s=8,
)
