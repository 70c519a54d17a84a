"""The kernel of one node hands out two ports, to all who dial and listen there."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def narrow(lab: Lab) -> None:
    lab["node-b"].run("echo 50000 50001 >/proc/sys/net/ipv4/ip_local_port_range", "root")


FAULT = Fault(
    breaks=narrow,
    stage="firewall",
    cause="ephemeral-ports-exhausted",
    nodes="node-b",
    says=(r"50000-50001", r"sysctl -w net\.ipv4\.ip_local_port_range="),
    mends=True,
    quick=True,
    within_s=7,
)
