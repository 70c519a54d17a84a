"""An old driver that knows fewer fields, another version than on the other node, a hot GPU: warnings, and no fault."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.gpus import install, two_each

OLD = ("clocks_event_reasons.active", "mig.mode.current", "retired_pages.pending")


def breaks(lab: Lab) -> None:
    install(lab["node-a"], 2, wrong={0: {"clocks_event_reasons.active": "0x0000000000000048"}})
    install(lab["node-b"], 2, without=OLD, driver="418.226.00", cuda="10.1")


FAULT = Fault(
    breaks=breaks,
    inventory=two_each,
    cause=None,
    says=(r"GPU 0 is slowed down: HW slowdown, HW thermal slowdown", r"NVIDIA driver is 418\.226\.00"),
    within_s=12,
)
