"""A rule at the device itself (netdev ingress), where no iptables looks."""

from __future__ import annotations

from lab.fault import Fault

RULES = """
table netdev early {
 chain arriving {
  type filter hook ingress device "eth0" priority 0; policy accept;
  tcp dport 29500-29510 drop
 }
}
"""


FAULT = Fault(
    breaks=lambda lab: lab["node-a"].firewall(RULES),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"netdev early arriving",),
    mends=True,
    within_s=7,
)
