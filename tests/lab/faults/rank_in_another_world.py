"""What the activate line runs tells one node another WORLD_SIZE."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"activate": "export WORLD_SIZE=3"}}},
    stage="connection",
    cause="world-size-mismatch",
    nodes="node-b",
    says=(r"WORLD_SIZE=3 instead of 2",),
    within_s=6,
)
