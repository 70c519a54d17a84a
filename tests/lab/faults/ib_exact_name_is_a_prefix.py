"""`=mlx5` asks for an HCA called just that; the ones there are called mlx5_0 and mlx5_1."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault


def breaks(lab: Lab) -> None:
    lab.fabric(["mlx5_0", "mlx5_1"])


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "=mlx5"}},
    stage="ibstat",
    cause="ib-hca-missing",
    nodes=EVERY,
    says=(r"no HCA with the exact name mlx5", r"write `mlx5` without `=`"),
    within_s=12,
)
