"""The rendezvous address is that of a node which is not the master."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"rendezvous": {"address": lab["node-b"].address}},
    stage="port",
    cause="master-address-not-local",
    nodes="node-a",
    says=(r"it belongs to node-b",),
    within_s=5,
)
