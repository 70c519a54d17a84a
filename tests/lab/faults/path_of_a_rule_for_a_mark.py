"""A packet filter marks what goes to the rendezvous port, and a policy rule leads that mark nowhere."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

RULES = """
table inet steering {
 chain output {
  type route hook output priority mangle; policy accept;
  tcp dport 29500 meta mark set 0x9
 }
}
"""


def breaks(lab: Lab) -> None:
    lab["node-b"].firewall(RULES)
    lab["node-b"].ip("route add blackhole default table 77", "rule add fwmark 9 lookup 77 prio 100")


FAULT = Fault(
    breaks=breaks,
    stage="firewall",
    cause="no-route",
    nodes="node-b",
    says=(r"most likely", r"fwmark 0x9 lookup 77"),
    mends=True,
    within_s=7,
)
