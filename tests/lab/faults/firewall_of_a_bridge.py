"""The node's address is on a bridge for virtual machines, and a rule of nft's `bridge` family drops the data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab import Lab
from lab.fault import Fault

RULES = """
table bridge vms {
 chain input {
  type filter hook input priority 0; policy accept;
  tcp dport 29500-60999 drop
 }
}
"""


def breaks(lab: Lab) -> None:
    lab.data_network()
    host = lab["node-b"]
    host.ip(
        *("addr flush dev eth1", "link add br0 type bridge stp_state 0 forward_delay 0"),
        *("link set eth1 master br0", "link set br0 up", "addr add 10.44.0.2/24 dev br0"),
    )
    host.firewall(RULES)


def inventory(lab: Lab) -> Mapping[str, Any]:
    given = lab.over_data_network()
    given["nodes"]["node-b"]["env"] = {"GLOO_SOCKET_IFNAME": "br0", "NCCL_SOCKET_IFNAME": "br0"}
    return given


FAULT = Fault(
    breaks=breaks,
    inventory=inventory,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"nft rule bridge vms input",),
    mends=True,
    within_s=8,
)
