"""Three of one GPU's NVLinks are inactive; its neighbours have all of theirs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 2, wrong={1: {"links": [True] * 15 + [False] * 3}})


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="nvlink-error",
    nodes="node-b",
    says=(r"GPU 1: 15 of 18 NVLinks active, inactive: 15, 16, 17",),
    within_s=6,
)
