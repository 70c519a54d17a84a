"""A limit that somebody left on one node's interface: what it sends crawls, whoever receives it."""

from __future__ import annotations

from lab.fault import SLOW, Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].limit(50),
    hosts=3,
    arguments=(*SLOW, "-e", "gate=0.03"),
    stage="full",
    cause="allreduce-slow",
    nodes="node-b",
    says=(
        r"node-b (?:sends at \d|is slow)",
        r"eth0 is limited to 50 Mbit/s",
        r"node-a and node-c move .* among themselves",
    ),
    mends=True,
    within_s=14,
)
