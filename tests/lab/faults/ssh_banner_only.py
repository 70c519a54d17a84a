"""The SSH server says who it is, and then nothing more."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, listener


def answer(lab: Lab) -> None:
    lab["node-b"].stop_sshd()
    listener(lab["node-b"], 22, user="root", says=b"SSH-2.0-OpenSSH_9.2\r\n")


FAULT = Fault(
    breaks=answer,
    stage="reach",
    cause="ssh-timeout",
    nodes="node-b",
    says=(r"OpenSSH_9.2",),
    unreachable=True,
    within_s=18,
)
