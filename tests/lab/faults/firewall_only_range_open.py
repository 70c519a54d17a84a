"""The master lets in the promised range, but not the ephemeral ports on which ranks exchange data."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain input {
  type filter hook input priority 0; policy drop;
  ct state established,related accept
  iif lo accept
  meta l4proto icmp accept
  tcp dport { 22, 29500-29510 } accept
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="data-ports-blocked",
    nodes="node-a",
    says=(r"policy drop", r"32768-60999"),
    mends=True,
    within_s=7,
)
