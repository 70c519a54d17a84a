"""Established connections between the ranks are reset, once, and no rule is left behind."""

from __future__ import annotations

from lab import Lab
from lab.fault import LONG, Fault, Strike


def reset(lab: Lab) -> None:
    peer = lab["node-a"].address
    lab["node-b"].run(["ss", "-K", "state", "established", "dst", peer], "root")


FAULT = Fault(
    strike=Strike(reset),
    arguments=LONG,
    stage="full",
    cause="tcp-connection-lost-midrun",
    nodes=("node-a", "node-b"),
    says=(r"no rank had died", r"ruled out: "),
    torchrun=True,
    within_s=6,
)
