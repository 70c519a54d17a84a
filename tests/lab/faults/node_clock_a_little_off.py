"""A clock is 3 s behind: a warning, and no reason to stop."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].clock_offset(-3),
    cause=None,
    says=(r"3.0 s behind",),
    within_s=10,
)
