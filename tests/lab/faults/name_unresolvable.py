"""The master's name is in nobody's hosts file on one node, and there is no DNS."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].set_hosts(f"{lab['node-b'].address} node-b"),
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-unresolvable",
    nodes="node-b",
    says=(r"node-b cannot resolve node-a", r"/etc/hosts"),
    mends=True,
    torchrun=True,
    quick=True,
    within_s=4,
)
