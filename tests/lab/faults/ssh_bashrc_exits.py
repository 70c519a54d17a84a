"""The .bashrc ends the shell before it runs our command."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write("~/.bashrc", "echo no more logins today\nexit 3\n", user=lab.user),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"no more logins today",),
    unreachable=True,
    quick=True,
    within_s=6,
)
