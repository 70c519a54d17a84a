"""Only what comes in by one interface is dropped, in a chain that a goto leads to."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain outside {
  tcp dport { 22, 80, 443 } accept
  ip protocol icmp accept
  ct state established,related accept
  counter drop
 }
 chain input {
  type filter hook input priority 0; policy accept;
  iifname "eth*" goto outside
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(
        r"inet filter outside",
        r"counter",
    ),
    mends=True,
    within_s=7,
)
