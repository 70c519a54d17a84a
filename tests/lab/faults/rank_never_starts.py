"""Python hangs on one node before it runs a line of ours, as on a module path whose file server is away."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import at_start

FAULT = Fault(
    breaks=lambda lab: at_start(lab["node-b"], "time.sleep(1000)"),
    stage="reach",
    ranks=True,
    cause="ranks-missing",
    nodes="node-b",
    says=(r"rank 1 on node-b",),
    within_s=20,
)
