"""A rule in a raw prerouting chain, before connection tracking and before everything that iptables lists first."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet early {
 chain prerouting {
  type filter hook prerouting priority raw; policy accept;
  tcp dport 29500 tcp flags syn / syn,ack drop
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"inet early prerouting",),
    mends=True,
    within_s=7,
)
