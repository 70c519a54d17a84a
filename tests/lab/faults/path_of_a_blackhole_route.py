"""A leftover `blackhole` route on one node swallows what it sends to the other."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].ip(f"route add blackhole {lab['node-a'].address}/32"),
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"blackhole 10\.",),
    mends=True,
    within_s=6,
)
