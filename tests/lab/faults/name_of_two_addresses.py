"""On one node the master's name means two addresses, and the one that is dialled first is nobody's."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    a, b = (host.address for host in lab)
    lab["node-b"].set_hosts(f"{lab.subnet[3]} node-a\n{a} node-a\n{b} node-b")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-wrong-address",
    nodes="node-b",
    says=(r"dialled first",),
    mends=True,
    within_s=5,
)
