"""nvidia-smi's list breaks off in the middle of a line, with exit code 0."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    install(lab["node-b"], 2)
    lab["node-b"].run("mv /usr/local/bin/nvidia-smi /usr/local/bin/whole-smi", "root")
    lab["node-b"].tool("nvidia-smi", '/usr/local/bin/whole-smi "$@" | head -c 180')


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="tool-output-unknown",
    nodes="node-b",
    unreachable=True,
    says=(r"cut or garbled",),
    within_s=6,
)
