"""The server offers only key exchanges that nobody should use any more."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(KexAlgorithms="diffie-hellman-group14-sha1"),
    stage="reach",
    cause="ssh-handshake-failed",
    nodes="node-b",
    says=(
        r"diffie-hellman-group14-sha1",
        r"curve25519",
    ),
    unreachable=True,
    within_s=6,
)
