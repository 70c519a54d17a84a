"""No fault, and warned of: one node asks for ECN, and something on the way drops packets that do. Its kernel asks without it
a second later, and that opens."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].knob("net.ipv4.tcp_ecn", 1)
    lab["node-b"].switch_rule("tcp flags & (syn | ack | ecn | cwr) == syn | ecn | cwr drop")


FAULT = Fault(
    breaks=breaks,
    cause=None,
    says=(r"node-b +13 of its 13 connections opened only a second later", r"tcp_ecn=2"),
    within_s=20,
)
