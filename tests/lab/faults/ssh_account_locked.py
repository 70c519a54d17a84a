"""The account is locked."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run(["usermod", "--lock", lab.user], "root"),
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"locked",),
    unreachable=True,
    within_s=6,
)
