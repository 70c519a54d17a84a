"""A policy rule refuses the way to the other node to the one user who runs the job; root's packets go through."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].ip(
        "route add blackhole default table 77",
        f"rule add uidrange {lab.uid}-{lab.uid} to {lab['node-a'].address} lookup 77 prio 100",
    )


FAULT = Fault(
    breaks=breaks,
    stage="ping",
    cause="no-route",
    nodes="node-b",
    says=(r"uidrange \d+-\d+ lookup 77", r"blackhole default table 77"),
    mends=True,
    within_s=5,
)
