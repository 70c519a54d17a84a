"""Another service answers at the SSH port."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, listener


def answer(lab: Lab) -> None:
    lab["node-b"].stop_sshd()
    listener(lab["node-b"], 22, user="root", says=b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


FAULT = Fault(
    breaks=answer,
    stage="reach",
    cause="ssh-handshake-failed",
    nodes="node-b",
    says=(r"HTTP/1.1 400",),
    unreachable=True,
    within_s=7,
)
