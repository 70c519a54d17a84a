"""The driver's libraries were updated under the running kernel module."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each

SAYS = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90"


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    lab["node-b"].tool("nvidia-smi", f"echo '{SAYS}'; exit 18")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="driver-library-mismatch",
    nodes="node-b",
    says=(r"sudo reboot",),
    within_s=6,
)
