"""On one node the master's name means an address that nobody has."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].set_hosts(f"{lab.subnet[200]} node-a\n{lab['node-b'].address} node-b"),
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-wrong-address",
    nodes="node-b",
    says=(r"\.200",),
    mends=True,
    torchrun=True,
    within_s=4,
)
