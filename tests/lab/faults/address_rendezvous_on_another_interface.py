"""No fault: the job uses one network, and the ranks meet at the master's address in another."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab.data_network(),
    inventory=lambda lab: {**lab.over_data_network(), "rendezvous": {"address": lab["node-a"].address}},
    cause=None,
    within_s=8,
)
