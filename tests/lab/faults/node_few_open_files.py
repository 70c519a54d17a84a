"""Logins may have 20 files open."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].limit_logins(nofile=20),
    stage="reach",
    cause="open-files-limit",
    nodes="node-b",
    says=(r"20",),
    within_s=6,
)
