"""ibstat never returns, as with an adapter that hangs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric()
    lab["node-b"].tool("ibstat", "sleep 1000")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="tool-output-unknown",
    nodes="node-b",
    unreachable=True,
    says=(r"ibstat does not return on node-b",),
    within_s=20,
)
