"""The activate line never ends."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"activate": "sleep 1000"}}},
    stage="reach",
    ranks=True,
    cause="activation-failed",
    nodes="node-b",
    says=(r"sleep 1000",),
    within_s=20,
)
