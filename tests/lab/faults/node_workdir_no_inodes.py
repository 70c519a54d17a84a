"""There is room where the workdir lies, and not one more file can be made."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run(
        "mkdir /scratch && mount -t tmpfs -o nr_inodes=2,mode=1777 lab /scratch", "root"
    ),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch"}}},
    stage="reach",
    cause="disk-full",
    nodes="node-b",
    says=(
        r"inodes",
        r"df -i",
    ),
    within_s=6,
)
