"""The cable of the interface that the job uses is pulled on one node; its address stays."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.processes import call


def breaks(lab: Lab) -> None:
    lab.data_network()
    call(["ip", "-n", lab.switch, "link", "set", f"d{lab['node-b'].index}", "down"])


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="reach",
    cause="interface-missing",
    nodes="node-b",
    says=(r"eth1 of node-b has no carrier",),
    within_s=4,
)
