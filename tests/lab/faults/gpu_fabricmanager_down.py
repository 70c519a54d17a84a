"""The fabric manager of an NVSwitch machine does not run: its GPUs are listed, and CUDA would not start."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 2, every={"fabric": "In Progress"})


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="fabricmanager-down",
    nodes="node-b",
    says=(r"Fabric State: In Progress", r"systemctl restart nvidia-fabricmanager"),
    within_s=6,
)
