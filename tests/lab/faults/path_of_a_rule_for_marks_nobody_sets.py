"""A VPN's policy rule refuses what bears its mark, which nothing here does: it is not why the switch drops the port."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    for host in lab:
        host.ip("rule add fwmark 0x80000/0xff0000 unreachable prio 5250")
    lab["node-a"].switch_rule("tcp dport 29500 drop", way="to")


FAULT = Fault(
    breaks=breaks,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"something between the nodes blocks it",),
    within_s=8,
)
