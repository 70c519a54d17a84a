"""A limit for new connections in a minute, far below what a job opens."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet filter {
 chain input {
  type filter hook input priority 0; policy accept;
  tcp dport 29500-60999 ct state new limit rate over 2/minute burst 1 packets drop
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"limit rate over 2/minute",),
    within_s=7,
)
