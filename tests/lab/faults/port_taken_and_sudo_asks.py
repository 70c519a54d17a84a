"""Another user's process holds the rendezvous port, and its process cannot be seen: its user is known all the same."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, listener


def taken(lab: Lab) -> None:
    listener(lab["node-a"], 29500, user="root")
    lab["node-a"].sudo("password")


FAULT = Fault(
    breaks=taken,
    stage="port",
    cause="port-in-use",
    nodes="node-a",
    says=(r"a process of root", r"sudo ss -Htanp"),
    within_s=5,
)
