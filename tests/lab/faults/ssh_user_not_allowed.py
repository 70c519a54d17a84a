"""The server's AllowUsers does not have our user."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(AllowUsers="somebody"),
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"AllowUsers",),
    unreachable=True,
    within_s=6,
)
