"""The account's shell is /bin/false, which says nothing at all."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].login_shell("/bin/false"),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"nologin",),
    unreachable=True,
    within_s=6,
)
