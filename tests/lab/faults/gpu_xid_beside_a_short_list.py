"""The list is only one GPU short; the kernel's log, which root alone may read, says why."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, kernel_says, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 1)
    kernel_says(lab["node-b"], "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-fell-off-bus",
    nodes="node-b",
    says=(r"missing: 1", r"sudo reboot"),
    within_s=6,
)
