"""A server that takes neither keys nor anything else."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(PubkeyAuthentication="no"),
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"takes no keys, and nothing else either",),
    unreachable=True,
    within_s=5,
)
