"""Somebody asks a rank to end, as a scheduler does at its limit."""

from __future__ import annotations

import signal

from lab.fault import LONG, Fault, Strike, strike_ranks

FAULT = Fault(
    strike=Strike(lambda lab: strike_ranks(lab, "node-a", signal.SIGTERM)),
    arguments=LONG,
    stage="full",
    cause="terminated-from-outside",
    nodes="node-a",
    says=(r"SIGTERM",),
    within_s=4,
)
