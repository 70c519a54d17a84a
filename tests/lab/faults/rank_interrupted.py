"""A rank gets the SIGINT of a Ctrl-C that was meant for something else, deep in torch."""

from __future__ import annotations

import signal

from lab.fault import LONG, Fault, Strike, strike_ranks

FAULT = Fault(
    strike=Strike(lambda lab: strike_ranks(lab, "node-b", signal.SIGINT)),
    arguments=LONG,
    stage="full",
    cause="terminated-from-outside",
    nodes="node-b",
    says=(r"SIGINT",),
    within_s=3,
)
