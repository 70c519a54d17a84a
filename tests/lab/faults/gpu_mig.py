"""A GPU is split by MIG: a rank would see a slice of it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 2, wrong={0: {"mig.mode.current": "Enabled"}})


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-count-mismatch",
    nodes="node-b",
    says=(r"MIG", r"-i 0 -mig 0"),
    mends=True,
    within_s=6,
)
