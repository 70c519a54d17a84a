"""Debian's line: the master resolves its own name to 127.0.1.1."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].set_hosts(f"127.0.1.1 node-a.lab node-a\n{lab['node-b'].address} node-b"),
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-resolves-to-loopback",
    nodes="node-a",
    says=(r"127\.0\.1\.1", r"/etc/hosts:\d+: 127\.0\.1\.1 node-a\.lab node-a"),
    mends=True,
    quick=True,
    within_s=4,
)
