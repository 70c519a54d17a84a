"""What one node says to itself is lost on its own loopback, by a queue and by no rule: nothing lies between it and itself."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-a"].run("tc qdisc add dev lo root pfifo limit 0", "root"),
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(r"no rule of node-a does it and nothing of it leaves node-a", r"tc -s qdisc show dev lo"),
    within_s=10,
)
