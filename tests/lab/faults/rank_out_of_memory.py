"""The kernel kills a rank for lack of memory: its control group has less than the sweep needs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault, Strike
from lab.memory import limit_memory


def squeeze(lab: Lab) -> None:
    host = lab["node-b"]
    limit_memory(host, [pid for pid, command in host.processes() if "rank.py" in command], 48 << 20)


FAULT = Fault(
    strike=Strike(squeeze),
    arguments=("-e", "min_bytes=16M", "-e", "max_bytes=256M", "-e", "budget=40s"),
    stage="full",
    cause="rank-killed",
    nodes="node-b",
    says=(r"killed by the kernel for lack of memory",),
    torchrun=True,
    within_s=6,
)
