"""A strict firewall that lets in all that the job needs: no fault."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

RULES = """
table inet filter {
 chain input {
  type filter hook input priority 0; policy drop;
  ct state established,related accept
  iif lo accept
  meta l4proto icmp accept
  tcp dport { 22, 29500-29510, 32768-60999 } accept
 }
}
"""


def strict(lab: Lab) -> None:
    for host in lab:
        host.firewall(RULES)


FAULT = Fault(
    breaks=strict,
    cause=None,
    within_s=20,
)
