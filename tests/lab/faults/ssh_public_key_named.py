"""The inventory names the public half of the key."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"ssh": {"key": f"{lab.key}.pub"}}}},
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"public half",),
    unreachable=True,
    within_s=6,
)
