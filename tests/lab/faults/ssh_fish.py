"""The login shell is fish, which is no POSIX shell."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].login_shell("/usr/bin/fish"),
    cause=None,
    within_s=10,
)
