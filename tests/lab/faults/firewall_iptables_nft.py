"""Rules of iptables-nft in a chain of its own, with a match that nft cannot show in its own words."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def rules(lab: Lab) -> None:
    for words in (
        "-N GUARD",
        "-A GUARD -p tcp -m multiport --dports 29500:29510 -m comment --comment guard -j REJECT",
        "-A INPUT -i eth0 -j GUARD",
    ):
        lab["node-a"].run(f"iptables-nft {words}", "root")


FAULT = Fault(
    breaks=rules,
    stage="firewall",
    cause="firewall-reject",
    nodes="node-a",
    says=(r"chain GUARD rule 1",),
    mends=True,
    within_s=7,
)
