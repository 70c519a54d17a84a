"""`min_busbw_gbytes: auto`: links of 100 Mbit/s that carry 40, which the nodes themselves cannot see."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault


def slower_than_they_say(lab: Lab) -> None:
    for host in lab:
        host.network_card(100)
        host.limit_incoming(40)


FAULT = Fault(
    breaks=slower_than_they_say,
    arguments=("-e", "min_bytes=4M", "-e", "max_bytes=4M", "-e", "budget=20s", "-e", "iterations=2", "-e", "gate=auto"),
    stage="full",
    cause="allreduce-slow",
    nodes=EVERY,
    says=(
        r"below what is normal; all links between nodes are alike",
        r"\d\d% of what is normal: 11.0 to 12.0 MB/s is normal for gloo, 2 nodes of 1 rank over TCP on 0.1 Gbit/s",
    ),
    within_s=16,
)
