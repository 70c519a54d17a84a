"""A limit for connections at the same time, far below what a job opens."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain input {
  type filter hook input priority 0; policy accept;
  tcp dport 29500-60999 ct state new ct count over 3 drop
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"ct count over 3",),
    within_s=7,
)
