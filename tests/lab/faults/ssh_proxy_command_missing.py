"""The ProxyCommand of ~/.ssh/config is a program that is not installed here."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def configure(lab: Lab) -> None:
    lab.ssh_config.write_text(f"Host {lab['node-b'].address}\n  ProxyCommand tunnel-of-nobody access --hostname %h\n")


FAULT = Fault(
    breaks=configure,
    stage="reach",
    cause="ssh-jump-failed",
    nodes="node-b",
    says=(r"says: .*tunnel-of-nobody: not found",),
    unreachable=True,
    within_s=5,
)
