"""A route of one node has two next hops, and one of them is dead: which connections get through is decided by their ports."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    host = lab["node-b"]
    host.knob("net.ipv4.fib_multipath_hash_policy", 1)
    hops = f"nexthop dev eth0 weight 1 nexthop via {lab.subnet[66]} dev eth0 weight 1"
    host.ip(f"route add {lab['node-a'].address}/32 src {host.address} {hops}")


FAULT = Fault(
    breaks=breaks,
    # Each port tried is a coin: with so many, the proof does not hang on luck.
    inventory=lambda lab: {"network": {"ports": "29500-29530"}},
    stage="firewall",
    cause="packet-loss",
    nodes="node-b",
    says=(r"got no answer twice, and \d+ opened at once twice", r"has 2 next hops", r"nexthop via 10\.\d+\.\d+\.66"),
    within_s=12,
)
