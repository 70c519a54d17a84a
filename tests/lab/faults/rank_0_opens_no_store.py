"""Rank 0 never opens the store: the others are refused, and no firewall did that."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-a"], "time.sleep(1000)", name="TCPStore"),
    stage="connection",
    cause="ranks-missing",
    nodes="node-a",
    says=(r"rank 0 on node-a is somewhere else .*opening the store",),
    within_s=12,
)
