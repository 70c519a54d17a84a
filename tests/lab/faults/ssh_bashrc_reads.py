"""The .bashrc asks a question, and takes our program for the answer."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("~/.bashrc", "read -p 'Load the modules? ' answer\n", user=lab.user),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"reads",),
    unreachable=True,
    within_s=6,
)
