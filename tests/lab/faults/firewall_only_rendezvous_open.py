"""The master lets in ssh and the rendezvous port, and nothing else: ranks would join, and then hang."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain input {
  type filter hook input priority 0; policy drop;
  ct state established,related accept
  iif lo accept
  meta l4proto icmp accept
  tcp dport { 22, 29500 } accept
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="data-ports-blocked",
    nodes="node-a",
    says=(r"the rendezvous port 29500 opens, but", r"policy drop"),
    torchrun=True,
    mends=True,
    within_s=7,
)
