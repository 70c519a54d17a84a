"""The switch is slow for everybody, and no node can know: what is slow is common to all of them."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, SLOW, Fault


def slow_switch(lab: Lab) -> None:
    for host in lab:
        host.limit_incoming(100)


FAULT = Fault(
    breaks=slow_switch,
    hosts=3,
    arguments=(*SLOW, "-e", "gate=0.03"),
    stage="full",
    cause="allreduce-slow",
    nodes=EVERY,
    says=(r"all links between nodes are alike", r"what they have in common is slow"),
    within_s=16,
)
