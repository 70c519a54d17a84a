"""The home folder is read-only, as after an error of its disk."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("mount -o remount,ro /home", "root"),
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"[Rr]ead-only",),
    within_s=6,
)
