"""A GPU has fallen off the bus: nvidia-smi lists the others and ends with 0, the complaint is on stderr alone."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, kernel_says, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 2, wrong={1: {"lost": "Unknown Error"}})
    kernel_says(
        lab["node-b"], "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    )


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-fell-off-bus",
    nodes="node-b",
    says=(r"0000:3B:00.0", r"Xid .*: 79"),
    within_s=6,
)
