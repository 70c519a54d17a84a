"""No fault: a cluster that speaks IPv6 and nothing else."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab.data_network("fd00:44::/64"),
    inventory=lambda lab: lab.over_data_network(),
    cause=None,
    quick=True,
    within_s=8,
)
