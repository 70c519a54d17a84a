"""One port of two has trained down to a single lane; the other has the rate that the inventory promises."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(["mlx5_0", "mlx5_1"]).set_rate(lab["node-b"], "mlx5_1", 50)


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5", "min_rate_gbps": 200}},
    stage="ibstat",
    cause="ib-rate-low",
    nodes="node-b",
    says=(r"mlx5_1:1 of node-b runs at 50 Gbit/s, not at the promised 200",),
    within_s=12,
)
