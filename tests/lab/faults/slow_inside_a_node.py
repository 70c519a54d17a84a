"""The ranks of one node are slow among themselves; between the nodes all is well."""

from __future__ import annotations

from lab.fault import SLOW, Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].limit(80, "lo"),
    inventory=lambda lab: {"defaults": {"processes": 2}},
    arguments=(*SLOW, "-e", "gate=0.04"),
    stage="full",
    cause="allreduce-slow",
    nodes="node-b",
    says=(r"the ranks of node-b are slow among themselves", r"lo is limited to 80 Mbit/s"),
    within_s=20,
)
