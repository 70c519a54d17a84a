"""The workdir lies on a file system that is mounted read-only."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("mkdir /scratch && mount -t tmpfs -o ro,mode=1777 lab /scratch", "root"),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"[Rr]ead-only",),
    within_s=6,
)
