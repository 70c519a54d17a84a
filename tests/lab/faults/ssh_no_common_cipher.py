"""The server offers only ciphers that nobody should use any more."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(Ciphers="chacha20-poly1305@openssh.com"),
    stage="reach",
    cause="ssh-handshake-failed",
    nodes="node-b",
    says=(r"chacha20",),
    unreachable=True,
    within_s=6,
)
