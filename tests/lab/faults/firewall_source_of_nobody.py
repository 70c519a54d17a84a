"""A NAT rule of the dialler sends from an address that no host has: the answers go astray, and no rule drops anything."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table ip nat {
 chain postrouting {
  type nat hook postrouting priority srcnat; policy accept;
  tcp dport 29500 snat to 10.99.99.9
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-b"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"10\.99\.99\.9 is none of node-b's addresses", r"snat to 10\.99\.99\.9"),
    mends=True,
    within_s=7,
)
