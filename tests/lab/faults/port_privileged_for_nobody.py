"""A port below 1024, where this kernel lets every user bind it: no fault."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].knob("net.ipv4.ip_unprivileged_port_start", 500),
    inventory=lambda _: {"rendezvous": {"port": 1023}},
    cause=None,
    within_s=20,
)
