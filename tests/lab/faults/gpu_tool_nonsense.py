"""nvidia-smi ends with 0 and prints something else than asked for: not understood is not healthy."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    lab["node-b"].tool("nvidia-smi", "echo 'GPU-cluster portal: please log in at https://portal.invalid/'")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="tool-output-unknown",
    nodes="node-b",
    unreachable=True,
    says=(r"please log in",),
    within_s=6,
)
