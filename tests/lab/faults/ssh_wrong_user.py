"""There is no such account."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"ssh": {"user": "nobody-here"}}}},
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"nobody-here@",),
    unreachable=True,
    within_s=6,
)
