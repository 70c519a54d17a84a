"""Another user's training holds most of a GPU: pid, user, command and memory are named."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, stranger, two_each


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2)
    stranger(lab["node-b"], gpu=1, mib=64000)


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-busy",
    nodes="node-b",
    says=(r"GPU 1 of node-b is in use: pid \d+ of root \(.*\) holds 64000 MiB", r"train\.py", r"sudo kill \d+"),
    quick=True,
    within_s=6,
)
