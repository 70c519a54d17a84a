"""The account knows another key than ours."""

from __future__ import annotations

from lab import keys
from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write(
        "~/.ssh/authorized_keys", f"{keys.generate('other').public} other\n", mode=0o600, user=lab.user
    ),
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"ssh-copy-id",),
    unreachable=True,
    quick=True,
    within_s=6,
)
