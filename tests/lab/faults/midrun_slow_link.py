"""A node's link becomes hundreds of times slower in the middle of an AllReduce: slow, but no hang."""

from __future__ import annotations

from lab.fault import Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].limit(10)),
    arguments=("-e", "min_bytes=16M", "-e", "max_bytes=256M", "-e", "budget=60s", "-e", "iterations=2000"),
    stage="full",
    cause="allreduce-slow",
    nodes="node-b",
    says=(r"the data still flows", r"/s"),
    within_s=12,
)
