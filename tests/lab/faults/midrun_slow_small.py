"""A node's link becomes slower while small sizes are reduced: the sweep goes on, at its pace."""

from __future__ import annotations

from lab.fault import Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].limit(40)),
    arguments=("-e", "max_bytes=1M", "-e", "budget=8s"),
    cause=None,
    within_s=10,
)
