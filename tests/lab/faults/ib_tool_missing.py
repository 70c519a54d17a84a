"""No ibstat, and no /sys/class/infiniband to read instead: nobody can look."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric({"node-a": ["mlx5_0"]})
    lab["node-b"].remove_tool("ibstat")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="tool-missing",
    nodes="node-b",
    unreachable=True,
    says=(r"infiniband-diags",),
    within_s=12,
)
