"""A policy rule leads what a node sends from its own address to a gateway that nobody has: only a route that is asked
for with that address shows it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].ip(
        f"route add default via {lab.subnet[200]} dev eth0 table 77",
        f"rule add from {lab['node-b'].address} to {lab['node-a'].address} lookup 77 prio 100",
    ),
    stage="ping",
    cause="no-route",
    nodes="node-b",
    within_s=8,
)
