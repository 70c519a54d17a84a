"""Logins may lock 64 KiB of memory, and NCCL is to use RDMA."""

from __future__ import annotations

from lab import Lab
from lab.fault import EVERY, Fault


def limit(lab: Lab) -> None:
    for host in lab:
        host.limit_logins(memlock=65536)


FAULT = Fault(
    breaks=limit,
    inventory=lambda lab: {"infiniband": {"hca": "mlx5"}, "rendezvous": {"backend": "nccl"}},
    stage="reach",
    cause="memlock-limit",
    nodes=EVERY,
    says=(
        r"64 KiB",
        r"limits.d",
    ),
    playbook="name: no ranks\nstages:\n  - check: ping\n",
    quick=True,
    within_s=6,
)
