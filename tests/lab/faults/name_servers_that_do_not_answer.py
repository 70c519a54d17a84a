"""One node asks a name server that is gone: every lookup that the hosts file does not answer hangs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    host = lab["node-b"]
    host.set_hosts(f"{host.address} node-b")
    host.write("/etc/resolv.conf", f"nameserver {lab.subnet[53]}\n")
    host.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: {"rendezvous": {"address": "node-a"}},
    stage="ping",
    cause="name-unresolvable",
    nodes="node-b",
    says=(r"nameserver 10\.\d+\.\d+\.53", r"no answer within"),
    within_s=10,
)
