"""Something on one node gives its rank the number of another."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import at_start

FAULT = Fault(
    breaks=lambda lab: at_start(lab["node-b"], "os.environ['RANK'] = '0'"),
    stage="connection",
    cause="duplicate-rank",
    nodes="node-b",
    says=(r"RANK=0 instead of 1",),
    within_s=6,
)
