"""On one node the master's name means an IPv6 address only, and the cluster speaks IPv4."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].set_hosts(f"fd00:77::1 node-a\n{lab['node-b'].address} node-b"),
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="ipv6-ipv4-mixing",
    nodes="node-b",
    says=(r"fd00:77::1", r"IPv6"),
    mends=True,
    within_s=4,
)
