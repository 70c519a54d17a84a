"""One direction between two nodes is slow, and only the cable knows why: without a third node, neither is to blame."""

from __future__ import annotations

from lab.fault import EVERY, SLOW, Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].limit_incoming(50),
    arguments=(*SLOW, "-e", "gate=0.03"),
    stage="full",
    cause="allreduce-slow",
    nodes=EVERY,
    says=(r"node-a → node-b carries \d", r"node-a sends slowly, or node-b receives slowly"),
    within_s=14,
)
