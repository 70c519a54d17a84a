"""A rank is stopped in the middle of an AllReduce, as a debugger does or a `kill -STOP`."""

from __future__ import annotations

import signal

from lab.fault import LONG, Fault, Strike, strike_ranks

FAULT = Fault(
    strike=Strike(lambda lab: strike_ranks(lab, "node-b", signal.SIGSTOP)),
    arguments=LONG,
    stage="full",
    cause="rank-stopped",
    nodes="node-b",
    says=(r"kill -CONT \d+",),
    torchrun=True,
    within_s=10,
)
