"""No interpreter at all: neither the one that the inventory names nor any other."""

from __future__ import annotations

import contextlib
import sys

from lab import Lab, LabError
from lab.fault import Fault


def remove(lab: Lab) -> None:
    for name in ("python", "python3", f"python3.{sys.version_info.minor}"):
        with contextlib.suppress(LabError):  # not every system has every name
            lab["node-b"].remove_tool(name)


FAULT = Fault(
    breaks=remove,
    inventory=lambda lab: {"nodes": {"node-b": {"python": "/opt/nowhere/bin/python"}}},
    stage="reach",
    cause="python-missing",
    nodes="node-b",
    says=(r"apt-get install python3",),
    quick=True,
    within_s=6,
)
