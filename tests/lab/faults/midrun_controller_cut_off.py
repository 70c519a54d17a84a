"""The controller loses its own network: every node is gone for it, and no node is to blame."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, LONG, Fault, Strike
from lab.processes import call


def cut_uplink(lab: Lab) -> None:
    call(["ip", "-n", lab.switch, "link", "set", "uplink", "down"])


FAULT = Fault(
    strike=Strike(cut_uplink),
    arguments=LONG,
    stage="full",
    cause="ssh-unreachable",
    nodes=EVERY,
    unreachable=True,
    within_s=14,
)
