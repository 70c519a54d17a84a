"""The rule stands in a chain that is jumped to, with a named set of ports and a named counter."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table inet guard {
 counter shut { }
 set closed { type inet_service; flags interval; elements = { 25, 29000-29999 }; }
 chain services {
  tcp dport 22 accept
  tcp dport @closed counter name shut drop
 }
 chain input {
  type filter hook input priority -10; policy accept;
  meta l4proto tcp jump services
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"tcp dport @closed counter name \"?shut\"? drop",),
    mends=True,
    within_s=7,
)
