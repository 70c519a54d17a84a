"""A listener on 127.0.0.1 alone: the ranks' store wants every address, and cannot have this one."""

from __future__ import annotations

from lab.fault import Fault, listener

FAULT = Fault(
    breaks=lambda lab: listener(lab["node-a"], 29500, address="127.0.0.1", user="root"),
    stage="port",
    cause="port-in-use",
    nodes="node-a",
    says=(r"127\.0\.0\.1:29500",),
    within_s=5,
)
