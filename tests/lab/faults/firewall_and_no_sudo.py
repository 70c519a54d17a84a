"""The rendezvous port is dropped, and the user has no sudo at all."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, filter_rule


def closed(lab: Lab) -> None:
    filter_rule(lab["node-a"], "tcp dport 29500 drop")
    for host in lab:
        host.sudo("none")


FAULT = Fault(
    breaks=closed,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"TCP 29500 from [\d.]+ to [\d.]+ was dropped, and the rules may not be read", r"rules: sudo"),
    within_s=8,
)
