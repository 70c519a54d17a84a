"""A port that somebody has disabled: the command that enables it is given."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(down=["node-a/mlx5_0"])
    lab["node-a"].tool("ibstat", "/usr/sbin/ibstat | sed 's/Polling/Disabled/'")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="ib-port-not-active",
    nodes="node-a",
    says=(r"physical state Disabled", r"sudo ibportstate -C mlx5_0 -P 1 -D 0 1 enable"),
    within_s=12,
)
