"""A rank is killed in the middle of an AllReduce, as the kernel does for memory."""

from __future__ import annotations

import signal

from lab.fault import LONG, Fault, Strike, strike_ranks

FAULT = Fault(
    strike=Strike(lambda lab: strike_ranks(lab, "node-b", signal.SIGKILL)),
    arguments=LONG,
    stage="full",
    cause="rank-killed",
    nodes="node-b",
    says=(r"SIGKILL",),
    torchrun=True,
    quick=True,
    within_s=6,
)
