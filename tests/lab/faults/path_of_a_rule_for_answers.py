"""The master's own kernel throws away what it answers from the rendezvous port: no packet filter ever sees it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].ip("rule add ipproto tcp sport 29500 blackhole prio 100"),
    stage="firewall",
    cause="no-route",
    nodes="node-a",
    says=(r"answers from TCP 29500", r"`100: from all ipproto tcp sport 29500 blackhole`"),
    mends=True,
    within_s=6,
)
