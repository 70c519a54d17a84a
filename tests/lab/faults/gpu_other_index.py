"""The inventory names GPUs 2 and 3 of a node that has 0 and 1."""

from __future__ import annotations

from lab.fault import Fault
from lab.gpus import install_everywhere

FAULT = Fault(
    breaks=install_everywhere,
    inventory=lambda _lab: {
        "defaults": {"processes": None},
        "nodes": {"node-a": {"gpus": [0, 1]}, "node-b": {"gpus": [2, 3]}},
    },
    stage="reach",
    cause="gpu-count-mismatch",
    nodes="node-b",
    says=(r"index 0, 1", r"missing: 2, 3"),
    within_s=6,
)
