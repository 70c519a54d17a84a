"""nvidia-smi never returns, as with a driver that waits for a GPU; the process it started must not stay either."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    lab["node-b"].tool("nvidia-smi", "sleep 1000")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-tool-hung",
    nodes="node-b",
    says=(r"nvidia-smi does not return on node-b", r"no answer within \d+ s"),
    quick=True,
    within_s=20,
)
