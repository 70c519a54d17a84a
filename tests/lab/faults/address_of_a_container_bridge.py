"""One node is told to use docker0: its address exists inside that machine only."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].ip("link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: {"nodes": {"node-b": {"env": {"GLOO_SOCKET_IFNAME": "docker0"}}}},
    stage="reach",
    cause="interface-wrong",
    nodes="node-b",
    says=(r"docker0", r"eth0"),
    quick=True,
    within_s=4,
)
