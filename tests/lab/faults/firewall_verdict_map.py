"""A verdict map decides by port."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table ip filter {
 map doors { type inet_service : verdict; flags interval; elements = { 22 : accept, 29500-29510 : drop }; }
 chain input {
  type filter hook input priority 0; policy accept;
  tcp dport vmap @doors
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"tcp dport vmap @doors",),
    mends=True,
    within_s=7,
)
