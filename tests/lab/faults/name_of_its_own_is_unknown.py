"""A node does not know its own host name, and no interface is named: gloo would announce loopback."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].set_hosts(f"{lab['node-a'].address} node-a"),
    inventory=lambda _: {"network": {"interface": None}},
    stage="ping",
    cause="name-unresolvable",
    nodes="node-b",
    says=(r"its own host name node-b",),
    mends=True,
    within_s=5,
)
