"""The Python that the inventory names has no torch, and a path that a shell would take apart: the remedy is one to type."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

PYTHON = "/opt/my envs/torch (2)/python3"


def breaks(lab: Lab) -> None:
    lab["node-b"].run(f"mkdir -p '/opt/my envs/torch (2)' && ln -s {lab.python_without_torch} '{PYTHON}'", "root")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"nodes": {"node-b": {"python": PYTHON}}},
    stage="reach",
    ranks=True,
    cause="torch-missing",
    nodes="node-b",
    says=(r"`'/opt/my envs/torch \(2\)/python3' -m pip install torch`",),
    within_s=6,
)
