"""The key file that the inventory names does not exist."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"ssh": {"key": str(lab.tmp / "nowhere")}}}},
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(
        r"nowhere",
        r"does not exist|No such file",
    ),
    unreachable=True,
    within_s=6,
)
