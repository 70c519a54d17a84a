"""A torch that was built without distributed."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def install(lab: Lab) -> None:
    lab["node-b"].write("/opt/other/torch/__init__.py", "__version__ = '2.4.0'\n")
    lab["node-b"].write("/opt/other/torch/distributed.py", "def is_available():\n    return False\n")


FAULT = Fault(
    breaks=install,
    inventory=lambda lab: {"nodes": {"node-b": {"env": {"PYTHONPATH": "/opt/other"}}}},
    stage="reach",
    ranks=True,
    cause="torch-distributed-not-built",
    nodes="node-b",
    says=(r"2.4.0",),
    within_s=6,
)
