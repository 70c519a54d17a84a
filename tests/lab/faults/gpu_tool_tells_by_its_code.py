"""nvidia-smi says in no language that is known here that a GPU has fallen off the bus; its exit code says it as well."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    lab["node-b"].tool("nvidia-smi", "echo 'Die GPU antwortet nicht mehr'; exit 15")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-fell-off-bus",
    nodes="node-b",
    says=(r"antwortet nicht", r"sudo reboot"),
    within_s=6,
)
