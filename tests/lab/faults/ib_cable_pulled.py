"""One of a node's two HCAs has no cable: Down and Polling."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(["mlx5_0", "mlx5_1"], down=["node-b/mlx5_1"])


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="ib-port-not-active",
    nodes="node-b",
    says=(r"mlx5_1:1 of node-b is Down \(physical state Polling\)",),
    within_s=12,
)
