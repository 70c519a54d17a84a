"""A policy rule leads what is meant for the rendezvous port, and nothing else, to a route that refuses it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].ip(
        "route add unreachable default table 77", "rule add ipproto tcp dport 29000-29999 lookup 77 prio 100"
    ),
    stage="firewall",
    cause="no-route",
    nodes="node-b",
    says=(r"`100: from all ipproto tcp dport 29000-29999 lookup 77`", r"unreachable default table 77"),
    mends=True,
    within_s=5,
)
