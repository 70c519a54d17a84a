"""PYTHONPATH leads to a file that Python takes for a module of its own, and every import ends in it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].write("/opt/site/random.py", "def dice():\n    return 4\n")
    lab["node-b"].write("~/.bashrc", "export PYTHONPATH=/opt/site\n", user=lab.user)


FAULT = Fault(
    breaks=breaks,
    stage="reach",
    ranks=True,
    cause="program-error",
    nodes="node-b",
    says=(r"Python takes /opt/site/random\.py for its module `random` on node-b",),
    within_s=8,
)
