"""Everybody on this machine may read the private key: ssh would not use it either."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def change(lab: Lab) -> None:
    copy = lab.tmp / "other_key"
    copy.touch(mode=0o600)
    copy.write_text(lab.key.read_text())
    copy.chmod(0o644)


FAULT = Fault(
    breaks=change,
    inventory=lambda lab: {"nodes": {"node-b": {"ssh": {"key": str(lab.tmp / "other_key")}}}},
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"chmod 600",),
    unreachable=True,
    within_s=6,
)
