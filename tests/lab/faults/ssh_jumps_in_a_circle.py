"""The jump host of ~/.ssh/config has a jump host itself, which is the node."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def circle(lab: Lab) -> None:
    node, jump = lab["node-b"].address, lab["node-c"].address
    lab.ssh_config.write_text(f"Host {node}\n  ProxyJump {jump}\nHost {jump}\n  User {lab.user}\n  ProxyJump {node}\n")


FAULT = Fault(
    breaks=circle,
    inventory=lambda _: {"nodes": {"node-c": None}},
    hosts=3,
    stage="reach",
    cause="ssh-jump-failed",
    nodes="node-b",
    says=(r"form a circle", r"ProxyJump none"),
    unreachable=True,
    within_s=5,
)
