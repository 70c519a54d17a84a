"""A packet filter drops what comes in by another interface than the way back, and the way back is another one."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

RULES = """
table inet raw {
 chain prerouting {
  type filter hook prerouting priority raw; policy accept;
  fib saddr . iif oif missing drop
 }
}
"""


def breaks(lab: Lab) -> None:
    lab.data_network()
    host = lab["node-b"]
    host.ip(f"route add {lab['node-a'].data_addresses[0]}/32 dev eth0")
    for name in ("all", "eth0", "eth1"):  # the kernel's own filter of that kind is off
        host.knob(f"net.ipv4.conf.{name}.rp_filter", 0)
    host.firewall(RULES)


FAULT = Fault(
    breaks=breaks,
    inventory=lambda lab: lab.over_data_network(),
    stage="ping",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"fib saddr \. iif oif missing drop",),
    mends=True,
    within_s=8,
)
