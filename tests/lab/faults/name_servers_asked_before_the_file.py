"""The names are in /etc/hosts, and nsswitch.conf has a dead name server asked before that file."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: dns files\n")
    lab["node-b"].write("/etc/resolv.conf", "nameserver 10.255.255.1\noptions timeout:5 attempts:3\n")
    lab["node-b"].ip(f"route add default via {lab.subnet[200]}")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-unresolvable",
    nodes="node-b",
    says=(r"`hosts: dns files`\) has others asked before that",),
    mends=True,
    within_s=12,
)
