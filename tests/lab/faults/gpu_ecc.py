"""A GPU has had memory errors that could not be corrected; after the printed reset the run passes."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 2, wrong={1: {"ecc.errors.uncorrected.volatile.total": "3"}})


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-ecc-uncorrectable",
    nodes="node-b",
    says=(r"3 uncorrectable", r"--gpu-reset -i 1"),
    mends=True,
    within_s=6,
)
