"""The rendezvous address is on no machine, and the master's kernel lets any address be bound, as beside keepalived."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].knob("net.ipv4.ip_nonlocal_bind", 1),
    inventory=lambda lab: {"rendezvous": {"address": str(lab.subnet[200])}},
    stage="port",
    cause="master-address-not-local",
    nodes="node-a",
    says=(r"\.200", r"on no interface"),
    within_s=5,
)
