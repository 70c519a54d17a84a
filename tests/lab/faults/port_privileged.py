"""A rendezvous port that is root's to bind."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda _: {"rendezvous": {"port": 1023}},
    stage="port",
    cause="port-privileged-or-reserved",
    nodes="node-a",
    says=(r"port 1023", r"below 1024"),
    quick=True,
    within_s=5,
)
