"""The workdir does not exist, and the folder above it is root's."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/opt/scratch"}}},
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"/opt/scratch",),
    mends=True,
    within_s=6,
)
