"""The kernel of the master hands out ports of another range than Linux ships, and its firewall opens the usual one."""

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


def breaks(lab: Lab) -> None:
    host = lab["node-a"]
    host.run("echo 10000 20000 >/proc/sys/net/ipv4/ip_local_port_range", "root")
    host.firewall(RULES)


FAULT = Fault(
    breaks=breaks,
    stage="firewall",
    cause="data-ports-blocked",
    nodes="node-a",
    says=(r"10000-20000 are the ports that the kernel picks",),
    mends=True,
    within_s=7,
)
