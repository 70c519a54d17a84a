"""The policy of the input chain drops whatever no rule names."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain input {
  type filter hook input priority 0; policy drop;
  ct state established,related accept
  iif lo accept
  meta l4proto icmp accept
  tcp dport { 22 } accept
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"`policy drop`",),
    torchrun=True,
    mends=True,
    within_s=7,
)
