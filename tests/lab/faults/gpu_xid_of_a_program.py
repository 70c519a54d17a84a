"""Somebody's program died of a bad memory access: a warning, and nothing is wrong with the node."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install_everywhere, kernel_says, two_each


def breaks(lab: Lab) -> None:
    install_everywhere(lab)
    kernel_says(lab["node-b"], "NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=python3, Ch 00000008, MMU Fault")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    cause=None,
    says=(r"Xid 31",),
    within_s=12,
)
