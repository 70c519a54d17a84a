"""The rendezvous address of the inventory is on no machine at all."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"rendezvous": {"address": str(lab.subnet[200])}},
    stage="port",
    cause="master-address-not-local",
    nodes="node-a",
    says=(r"\.200", r"on no interface"),
    torchrun=True,
    quick=True,
    within_s=5,
)
