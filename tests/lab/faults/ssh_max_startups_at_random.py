"""The server turns away one login in two, at random."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(MaxStartups="1:50:100"),
    cause=None,
    within_s=10,
)
