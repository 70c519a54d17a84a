"""No fault: a cable is pulled for a second in the middle of an AllReduce, and TCP carries on. Where an iteration was on its
way, its pause is told; between two of them there is none."""

from __future__ import annotations

import time

from lab import Lab
from lab.fault import Fault, Strike
from lab.processes import call


def flap(lab: Lab) -> None:
    lab["node-b"].cut()
    time.sleep(1)
    call(["ip", "-n", lab.switch, "link", "set", lab["node-b"].port, "up"])


FAULT = Fault(
    strike=Strike(flap),
    arguments=("-e", "max_bytes=64M", "-e", "budget=8s", "-e", "iterations=200"),
    cause=None,
    within_s=16,
)
