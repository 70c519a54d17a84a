"""Both nodes were limited alike, below the gate."""

from __future__ import annotations

from lab.fault import EVERY, SLOW, Fault

FAULT = Fault(
    breaks=lambda lab: lab.limit(100),
    arguments=(*SLOW, "-e", "gate=0.03"),
    stage="full",
    cause="allreduce-slow",
    nodes=EVERY,
    says=(r"eth0 is limited to 100 Mbit/s", r"measured between nodes: \d"),
    mends=True,
    within_s=12,
)
