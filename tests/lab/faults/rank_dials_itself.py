"""What the activate line runs sends one node's rank to its own loopback address."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"activate": "export MASTER_ADDR=127.0.0.1"}}},
    stage="connection",
    cause="master-addr-loopback",
    nodes="node-b",
    says=(r"dials 127\.0\.0\.1:29500",),
    within_s=14,
)
