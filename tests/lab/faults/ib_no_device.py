"""A node without any InfiniBand device: ibstat is there and has nothing to show."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric({"node-a": ["mlx5_0"]})


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="ib-no-device",
    nodes="node-b",
    says=(r"node-b has no InfiniBand device",),
    within_s=12,
)
