"""The workdir belongs to somebody else."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("mkdir -m 755 /scratch", "root"),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(
        r"/scratch",
        r"install -d",
    ),
    within_s=6,
)
