"""A clock is 40 s ahead."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].clock_offset(40),
    stage="reach",
    cause="clock-skew",
    nodes="node-b",
    says=(r"40 s ahead",),
    quick=True,
    within_s=6,
)
