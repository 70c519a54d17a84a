"""The SSH port opens, and nobody ever says a word."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, listener


def answer(lab: Lab) -> None:
    lab["node-b"].stop_sshd()
    listener(lab["node-b"], 22, user="root", says=b"")


FAULT = Fault(
    breaks=answer,
    stage="reach",
    cause="ssh-timeout",
    nodes="node-b",
    says=(r"says nothing",),
    unreachable=True,
    within_s=18,
)
