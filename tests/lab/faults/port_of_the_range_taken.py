"""A port that the inventory promises is taken on a node that is not the master."""

from __future__ import annotations

from lab.fault import Fault, listener

FAULT = Fault(
    breaks=lambda lab: listener(lab["node-b"], 29505, user="root"),
    stage="port",
    cause="port-in-use",
    nodes="node-b",
    says=(r"29505 of node-b", r"process \d+"),
    within_s=5,
)
