"""Two sound GPUs a node, which gloo does not need: what is looked at and found right is no fault."""

from __future__ import annotations

from lab.fault import Fault
from lab.gpus import install_everywhere, two_each

FAULT = Fault(
    breaks=lambda lab: install_everywhere(lab, 4),
    inventory=two_each,
    cause=None,
    says=(r"2 GPUs", r"4 ranks on 2 hosts joined"),
    within_s=12,
)
