"""The account's shell is nologin."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].login_shell("/usr/sbin/nologin"),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"not available",),
    unreachable=True,
    within_s=6,
)
