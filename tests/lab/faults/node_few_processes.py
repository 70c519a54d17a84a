"""The account may have no more processes."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].limit_logins(nproc=1),
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"ulimit -u",),
    unreachable=True,
    within_s=6,
)
