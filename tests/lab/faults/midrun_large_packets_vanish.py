"""From some moment on the network loses full-size packets of one node."""

from __future__ import annotations

from lab.fault import EVERY, LONG, Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].switch_rule("meta length > 1400 drop")),
    arguments=LONG,
    stage="full",
    cause="mtu-blackhole",
    nodes=EVERY,
    torchrun=True,
    within_s=15,
)
