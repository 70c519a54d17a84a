"""A rule of iptables-legacy, which nft does not show."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def rule(lab: Lab) -> None:
    for words in ("-p icmp -j ACCEPT", "-p tcp -m multiport --dports 29500,29501 -j DROP"):
        lab["node-a"].run(f"iptables-legacy -A INPUT {words}", "root")


FAULT = Fault(
    breaks=rule,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"iptables-legacy chain INPUT rule 2", r"sudo iptables-legacy -I INPUT 2"),
    mends=True,
    within_s=7,
)
