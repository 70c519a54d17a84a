"""The interpreter that the inventory names is not there; another one is."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"python": "/opt/nowhere/bin/python"}}},
    stage="reach",
    cause="python-missing",
    nodes="node-b",
    says=(
        r"/opt/nowhere/bin/python",
        r"is there",
    ),
    within_s=6,
)
