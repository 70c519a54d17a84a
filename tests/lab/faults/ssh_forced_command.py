"""The account may run one program only."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(ForceCommand="echo this account is for backups"),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"for backups",),
    unreachable=True,
    within_s=6,
)
