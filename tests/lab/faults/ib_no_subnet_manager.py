"""Nobody manages the subnet: every port stays Initializing, and no single node is to blame."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault


def breaks(lab: Lab) -> None:
    lab.fabric(subnet_manager=False)


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5", "min_rate_gbps": 200}},
    stage="ibstat",
    cause="ib-port-initializing",
    nodes=EVERY,
    says=(r"Initializing", r"opensm"),
    quick=True,
    within_s=12,
)
