"""Packets that a raw rule keeps from being tracked are not `new`, so nothing lets them in."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain prerouting {
  type filter hook prerouting priority raw; policy accept;
  tcp dport 29500 notrack
 }
 chain input {
  type filter hook input priority 0; policy accept;
  tcp dport 22 accept
  meta l4proto tcp ct state new,established,related accept
  meta l4proto tcp drop
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"meta l4proto tcp drop",),
    mends=True,
    within_s=7,
)
