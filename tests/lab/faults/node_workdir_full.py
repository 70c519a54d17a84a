"""The file system of the workdir is full."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run(
        "mkdir /scratch && mount -t tmpfs -o size=128m,mode=1777 lab /scratch && cat /dev/zero >/scratch/zeros; true",
        "root",
    ),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="disk-full",
    nodes="node-b",
    says=(r"/scratch",),
    quick=True,
    within_s=6,
)
