"""A policy rule leads what is meant for the rendezvous port, and nothing else, to a gateway that nobody has."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].ip(
        f"route add default via {lab.subnet[200]} dev eth0 table 77",
        "rule add ipproto tcp dport 29000-29999 lookup 77 prio 100",
    ),
    stage="firewall",
    cause="no-route",
    nodes="node-b",
    says=(r"`100: from all ipproto tcp dport 29000-29999 lookup 77`", r"to the gateway 10\.\d+\.\d+\.200"),
    mends=True,
    within_s=8,
)
