"""Everybody may write where the workdir lies: another user could put his script in the place of ours."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("mkdir /scratch && chmod 777 /scratch", "root"),
    inventory=lambda lab: {"nodes": {"node-b": {"workdir": "/scratch/mine"}}},
    stage="reach",
    cause="workdir-not-safe",
    nodes="node-b",
    says=(
        r"/scratch",
        r"every user may write",
        r"namei -l",
    ),
    within_s=6,
)
