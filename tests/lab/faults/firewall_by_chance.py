"""Three of ten packets of TCP are dropped by iptables' own dice; pings all come back."""

from __future__ import annotations

from lab.fault import Fault

RULE = "-p tcp ! --sport 22 -m statistic --mode random --probability 0.3 -j DROP"

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].run(f"iptables -A OUTPUT {RULE}", "root"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"chain OUTPUT rule 1", r"some of the packets"),
    mends=True,
    within_s=12,
)
