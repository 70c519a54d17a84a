"""A rank gets SIGBUS, as for a shared memory that has no room left."""

from __future__ import annotations

import signal

from lab.fault import LONG, Fault, Strike, strike_ranks

FAULT = Fault(
    strike=Strike(lambda lab: strike_ranks(lab, "node-b", signal.SIGBUS)),
    arguments=LONG,
    stage="full",
    cause="rank-crashed",
    nodes="node-b",
    says=(r"SIGBUS", r"df -h /dev/shm"),
    within_s=4,
)
