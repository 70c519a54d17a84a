"""The umask of a startup file takes the user's own rights, so that it may not enter the folders that it makes."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("~/.bashrc", "umask 0777\n", user=lab.user),
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"\.runbook on node-b is \w+'s own, and its mode 0*0 keeps \w+ itself out", r"umask"),
    within_s=4,
)
