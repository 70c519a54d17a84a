"""The login user may not read /etc/hosts on one node."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("chmod 600 /etc/hosts", "root"),
    inventory=lambda _: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-unresolvable",
    nodes="node-b",
    says=(r"may not read /etc/hosts",),
    mends=True,
    within_s=5,
)
