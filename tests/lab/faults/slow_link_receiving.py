"""The switch hands packets to one node slowly: nothing on that node shows it, but every other node's sending does."""

from __future__ import annotations

from lab.fault import SLOW, Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-c"].limit_incoming(50),
    hosts=3,
    arguments=(*SLOW, "-e", "gate=0.03"),
    stage="full",
    cause="allreduce-slow",
    nodes="node-c",
    says=(r"node-c receives at \d", r"ethtool eth0", r"node-a and node-b move .* among themselves"),
    within_s=16,
)
