"""What one node sends to the other gets lost in the network from some moment on; the other way is fine."""

from __future__ import annotations

from lab.fault import EVERY, LONG, Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].switch_rule("drop")),
    arguments=LONG,
    stage="full",
    cause="firewall-drop",
    nodes=EVERY,
    torchrun=True,
    within_s=13,
)
