"""The .bashrc becomes another shell, which takes our program for commands."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("~/.bashrc", "exec zsh\n", user=lab.user),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"bashrc",),
    unreachable=True,
    within_s=6,
)
