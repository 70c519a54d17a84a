"""/dev/shm, through which the GPUs of a node talk to each other, has not room for one of NCCL's segments each."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install_everywhere, two_each


def shrink(lab: Lab) -> None:
    install_everywhere(lab)
    lab["node-b"].run("mount -o remount,size=16m /dev/shm", "root")


FAULT = Fault(
    breaks=shrink,
    inventory=two_each,
    stage="reach",
    cause="shm-too-small",
    nodes="node-b",
    says=(r"16 MiB", r"20 MiB", r"2 GPUs"),
    mends=True,
    quick=True,
    within_s=6,
)
