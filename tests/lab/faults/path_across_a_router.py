"""No fault: two subnets with a router between them."""

from __future__ import annotations

from lab.fault import Fault, routed

FAULT = Fault(
    hosts=3,
    breaks=routed,
    inventory=lambda lab: lab.over_data_network("node-a", "node-b"),
    cause=None,
    within_s=8,
)
