"""Three nodes are out of reach, each for a reason of its own: one run tells them all."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def three(lab: Lab) -> None:
    lab["node-b"].stop_sshd()
    lab["node-c"].write("~/.ssh/authorized_keys", "", mode=0o600, user=lab.user)
    lab["node-d"].rekey()


FAULT = Fault(
    breaks=three,
    hosts=4,
    stage="reach",
    cause="ssh-refused",
    nodes="node-b",
    also=(("node-c", "ssh-auth-failed"), ("node-d", "ssh-host-key-changed")),
    unreachable=True,
    quick=True,
    within_s=6,
)
