"""The GPU's own processor does not answer the driver (Xid 119), though nvidia-smi still lists the GPU."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install_everywhere, kernel_says, two_each

XID = "NVRM: Xid (PCI:0000:3b:00): 119, pid=4711, name=python3, Timeout after 6s of waiting for RPC response from GPU1 GSP!"


def breaks(lab: Lab) -> None:
    install_everywhere(lab)
    kernel_says(lab["node-a"], XID)


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    stage="reach",
    cause="gpu-reset-required",
    nodes="node-a",
    says=(r"GPU 1 of node-a", r"--gpu-reset -i 1"),
    within_s=6,
)
