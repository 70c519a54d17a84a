"""There is no sudo: nothing that passes needs it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].remove_tool("sudo"),
    cause=None,
    within_s=10,
)
