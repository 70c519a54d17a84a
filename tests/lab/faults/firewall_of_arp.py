"""A rule of nft's `arp` family: nobody finds the node, and no rule for IP has anything to do with it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

RULES = """
table arp guard {
 chain input {
  type filter hook input priority 0; policy accept;
  iifname "eth1" drop
 }
}
"""


def breaks(lab: Lab) -> None:
    lab.data_network()
    lab["node-b"].firewall(RULES)


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"nft rule arp guard input handle \d+ `iifname .?eth1.? drop`",),
    mends=True,
    within_s=7,
)
