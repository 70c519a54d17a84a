"""A node takes the master's name for itself."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].set_hosts(f"127.0.0.1 node-a\n{lab['node-b'].address} node-b"),
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-resolves-to-loopback",
    nodes="node-b",
    says=(r"127\.0\.0\.1",),
    mends=True,
    torchrun=True,
    within_s=4,
)
