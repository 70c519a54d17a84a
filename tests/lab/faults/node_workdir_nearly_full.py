"""The file system of the workdir has less room than the job needs."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("mkdir /scratch && mount -t tmpfs -o size=20m,mode=1777 lab /scratch", "root"),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="disk-full",
    nodes="node-b",
    says=(r"20 MiB",),
    within_s=6,
)
