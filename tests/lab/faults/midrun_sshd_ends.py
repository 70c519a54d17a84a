"""sshd ends on a node in the middle of a run: no new logins, and the run does not need any."""

from __future__ import annotations

from lab.fault import Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].stop_sshd(), moving=False),
    arguments=("-e", "max_bytes=16M", "-e", "budget=4s", "-e", "iterations=200"),
    cause=None,
    within_s=9,
)
