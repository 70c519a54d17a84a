"""node-b drops the rendezvous port, where only the master is dialled: no fault."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], "tcp dport 29500 drop"),
    inventory=lambda _: {"network": {"ports": None}},
    cause=None,
    within_s=20,
)
