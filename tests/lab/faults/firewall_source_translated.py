"""The dialler sends from another address than its own, by a NAT rule, and the master lets in only the right one."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def translate(lab: Lab) -> None:
    near, far = lab["node-b"], lab["node-a"]
    near.ip(f"addr add {lab.subnet[99]}/24 dev eth0")
    near.run(
        f"iptables -t nat -A POSTROUTING -p tcp -d {far.address} --dport 29500: -j SNAT --to {lab.subnet[99]}", "root"
    )
    allow = f"ufw allow 22/tcp && ufw allow proto tcp from {near.address} to any port 29500:65535"
    far.run(f"{allow} && ufw --force enable", "root")


FAULT = Fault(
    breaks=translate,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"\.99 is what node-b's own NAT rule makes of",),
    mends=True,
    within_s=9,
)
