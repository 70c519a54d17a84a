"""sudo would ask for a password: nothing that passes needs it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sudo("password"),
    cause=None,
    within_s=10,
)
