"""The name is in /etc/hosts, and nsswitch.conf does not look there."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: dns\n")
    lab["node-b"].write("/etc/resolv.conf", "")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-unresolvable",
    nodes="node-b",
    says=(r"nsswitch\.conf",),
    mends=True,
    within_s=6,
)
