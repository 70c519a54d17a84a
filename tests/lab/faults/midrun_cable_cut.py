"""A node's cable is pulled in the middle of an AllReduce: nobody can reach it any more."""

from __future__ import annotations

from lab.fault import LONG, Fault, Strike

FAULT = Fault(
    strike=Strike(lambda lab: lab["node-b"].cut()),
    arguments=LONG,
    stage="full",
    cause="ssh-unreachable",
    nodes="node-b",
    unreachable=True,
    torchrun=True,
    quick=True,
    within_s=15,
)
