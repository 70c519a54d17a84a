"""The HCA that the inventory names is sound; a spare one has no cable, and nobody would use it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(["mlx5_0", "mlx5_1"], down=["node-a/mlx5_1", "node-b/mlx5_1"])


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "=mlx5_0", "min_rate_gbps": 200}},
    cause=None,
    says=(r"mlx5_0:1 Active, LinkUp at 200 Gbit/s",),
    within_s=16,
)
