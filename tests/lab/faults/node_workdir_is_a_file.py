"""Where the workdir should be lies a file."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("/scratch", "not a folder\n"),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"/scratch.* is a file|Not a directory",),
    within_s=6,
)
