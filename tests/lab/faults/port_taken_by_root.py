"""Another user's process listens on the rendezvous port."""

from __future__ import annotations

from lab.fault import Fault, listener

FAULT = Fault(
    breaks=lambda lab: listener(lab["node-a"], 29500, user="root"),
    stage="port",
    cause="port-in-use",
    nodes="node-a",
    says=(r"29500", r"process \d+ of root", r"python -c import socket", r"sudo kill \d+"),
    within_s=5,
)
