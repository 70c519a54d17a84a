"""The server lets us in and opens no session."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(MaxSessions="0"),
    stage="reach",
    cause="ssh-handshake-failed",
    nodes="node-b",
    says=(r"maxsessions",),
    unreachable=True,
    within_s=6,
)
