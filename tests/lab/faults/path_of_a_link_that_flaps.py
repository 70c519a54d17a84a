"""The link of one node of four goes down for a moment while ping looks: what is tried after it comes through."""

from __future__ import annotations

import time

from lab import Lab
from lab.fault import Fault, Strike
from lab.processes import call


def flap(lab: Lab) -> None:
    for state in ("down", "up"):
        call(["ip", "-n", lab.switch, "link", "set", "d2", state])
        time.sleep(0.3)


FAULT = Fault(
    hosts=4,
    breaks=lambda lab: lab.data_network(),
    strike=Strike(flap, stage="ping", moving=False),
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="packet-loss",
    nodes="node-c",
    says=(r"the link of eth1 on node-c does not stay up", r"carrier_changes"),
    within_s=8,
)
