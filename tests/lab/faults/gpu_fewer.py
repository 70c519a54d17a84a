"""One node has one GPU fewer than the inventory says."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 1)


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-count-mismatch",
    nodes="node-b",
    says=(r"node-b has 1 GPU \(index 0\)", r"missing: 1"),
    quick=True,
    within_s=6,
)
