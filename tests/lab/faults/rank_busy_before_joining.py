"""A rank has reached the store and then waits for something of its own: no port is blocked, whoever waits for it."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], "time.sleep(1000)", name="init_process_group"),
    stage="connection",
    cause="ranks-missing",
    nodes="node-b",
    says=(r"rank 1 on node-b is somewhere else .* in meddled, while rank 0 on node-a waits for it",),
    within_s=12,
)
