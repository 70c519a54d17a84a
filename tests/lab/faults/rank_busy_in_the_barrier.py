"""Rank 0 has joined, and is somewhere else while the other one waits in the first barrier."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-a"], "time.sleep(1000)", name="barrier"),
    stage="connection",
    cause="rank-behind",
    nodes="node-a",
    says=(r"rank 0 on node-a is somewhere else", r"sitecustomize\.py"),
    within_s=12,
)
