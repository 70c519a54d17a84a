"""The rendezvous port is dropped, and sudo asks for a password: the rules cannot be read."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, filter_rule


def closed(lab: Lab) -> None:
    filter_rule(lab["node-a"], "tcp dport 29500 drop")
    for host in lab:
        host.sudo("password")


FAULT = Fault(
    breaks=closed,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(
        r"TCP 29500 from [\d.]+ to [\d.]+ was dropped, and the rules may not be read",
        r"rules: sudo asks for a password",
    ),
    quick=True,
    within_s=8,
)
