"""What the activate line runs moves the master's port, and nobody else's."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-a": {"activate": "export MASTER_PORT=29777"}}},
    stage="connection",
    cause="master-addr-wrong-host",
    nodes="node-a",
    says=(r"listens at \S+:29777",),
    within_s=14,
)
