"""The loopback interface of one node is down: its ranks reach every other node, and not each other or its own store."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].ip("link set lo down"),
    stage="reach",
    cause="interface-missing",
    nodes="node-a",
    says=(r"interface lo of node-a is down", r"sudo ip link set lo up"),
    mends=True,
    within_s=4,
)
