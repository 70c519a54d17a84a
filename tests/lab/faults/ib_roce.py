"""RoCE: the ports are Ethernet, have no subnet manager, and are sound."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(rate=100)
    for host in lab:
        host.tool(
            "ibstat", "/usr/sbin/ibstat | sed -e 's/Link layer: .*/Link layer: Ethernet/' -e 's/SM lid: .*/SM lid: 0/'"
        )


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5", "min_rate_gbps": 100}},
    cause=None,
    says=(r"mlx5_0:1 Active, LinkUp at 100 Gbit/s",),
    within_s=16,
)
