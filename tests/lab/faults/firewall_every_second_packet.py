"""A rule that somebody forgot drops every second packet of a peer, whatever it is: it looks like a bad cable, and is none."""

from __future__ import annotations

from lab.fault import Fault, filter_rule

FAULT = Fault(
    breaks=lambda lab: filter_rule(lab["node-b"], f"ip saddr {lab['node-a'].address} numgen inc mod 2 0 drop"),
    stage="ping",
    cause="firewall-drop",
    nodes="node-b",
    says=(r"numgen inc mod 2", r"\d+% packet loss"),
    mends=True,
    within_s=14,
)
