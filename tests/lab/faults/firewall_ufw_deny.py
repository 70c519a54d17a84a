"""A deny rule of ufw for one peer, while everything else is allowed to come in."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def ufw(lab: Lab) -> None:
    deny = f"ufw allow 22/tcp && ufw deny proto tcp from {lab['node-a'].address} to any port 29500:60999"
    lab["node-b"].run(f"{deny} && ufw default allow incoming && ufw --force enable", "root")


FAULT = Fault(
    breaks=ufw,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"DENY IN", r"sudo ufw insert 1 allow from"),
    mends=True,
    within_s=9,
)
