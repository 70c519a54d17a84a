"""One node's NCCL_IB_HCA names an HCA that it does not have; the right name is one letter away."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(["mlx5_0", "mlx5_1"])


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {
        "infiniband": {"hca": "mlx5_0,mlx5_1"},
        "nodes": {"node-b": {"env": {"NCCL_IB_HCA": "mlx5_0,mlxl5_1"}}},
    },
    stage="ibstat",
    cause="ib-hca-missing",
    nodes="node-b",
    says=(r"node-b has no HCA mlxl5_1: it has mlx5_0, mlx5_1", r"did you mean `mlx5_1`"),
    within_s=12,
)
