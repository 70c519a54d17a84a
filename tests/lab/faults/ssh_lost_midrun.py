"""sshd and every session of it die in the middle of a run."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].stop_sshd(sessions=True)),
    arguments=LONG,
    stage="full",
    cause="ssh-unreachable",
    nodes="node-b",
    says=(r"node-b was closed",),
    unreachable=True,
    within_s=8,
)
