"""The server lets in by password only."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(PubkeyAuthentication="no", PasswordAuthentication="yes"),
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"only.* password",),
    unreachable=True,
    within_s=6,
)
