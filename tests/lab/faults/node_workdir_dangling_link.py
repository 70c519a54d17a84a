"""The workdir is a link that leads nowhere."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("ln -s /gone/scratch /scratch", "root"),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"/gone/scratch",),
    mends=True,
    within_s=6,
)
