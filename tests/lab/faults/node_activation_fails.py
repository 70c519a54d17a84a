"""The activate line names an environment that is not there."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"activate": "source /opt/nowhere/bin/activate"}}},
    stage="reach",
    cause="activation-failed",
    ranks=True,
    nodes="node-b",
    says=(r"fails with code \d+: .*/opt/nowhere/bin/activate: No such file",),
    quick=True,
    within_s=6,
)
