"""On one node the master's name means a third, live node."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=3,
    breaks=lambda lab: lab["node-b"].set_hosts(
        f"{lab['node-c'].address} node-a  # moved\n{lab['node-b'].address} node-b"
    ),
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-wrong-address",
    nodes="node-b",
    says=(r"the address of node-c",),
    mends=True,
    within_s=4,
)
