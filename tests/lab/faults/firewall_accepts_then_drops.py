"""One base chain accepts the rendezvous port, and a later one drops it all the same."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table ip first {
 chain input {
  type filter hook input priority -5; policy accept;
  tcp dport 29500 accept
 }
}
table inet second {
 chain later {
  type filter hook input priority 5; policy accept;
  meta mark 0x66 drop
 }
 chain before {
  type filter hook prerouting priority mangle; policy accept;
  tcp dport 29500 meta mark set 0x66
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"inet second later",),
    mends=True,
    within_s=8,
)
