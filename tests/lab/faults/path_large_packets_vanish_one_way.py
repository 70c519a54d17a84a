"""What leaves one node of three does not arrive when it is over 1400 bytes; no rule of any node does that."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=3,
    breaks=lambda lab: lab["node-c"].switch_rule("meta length > 1400 drop"),
    stage="ping",
    cause="mtu-blackhole",
    nodes="node-c",
    says=(r"from node-c to node-a",),
    within_s=8,
)
