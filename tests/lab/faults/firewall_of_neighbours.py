"""An IPv6 firewall that "blocks ICMP": neighbours no longer find each other, and nothing else is dropped."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, filter_rule


def breaks(lab: Lab) -> None:
    lab.data_network("fd00:44::/64")
    filter_rule(lab["node-a"], "meta l4proto ipv6-icmp drop")
    for host in lab:
        host.ip("neigh flush all")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"by which neighbours find each other", r"meta l4proto ipv6-icmp drop"),
    mends=True,
    within_s=9,
)
