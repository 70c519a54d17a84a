"""A node without nvidia-smi: nobody can look, so nobody says that its GPUs are well."""

from __future__ import annotations

from lab.fault import Fault
from lab.gpus import install, two_each

FAULT = Fault(
    breaks=lambda lab: install(lab["node-a"], 2),
    inventory=two_each,
    stage="reach",
    cause="tool-missing",
    nodes="node-b",
    unreachable=True,
    says=(r"node-b has no nvidia-smi", r"the kernel shows \d+ NVIDIA GPU"),
    within_s=6,
)
