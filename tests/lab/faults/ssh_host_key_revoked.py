"""known_hosts has the node's key, and a line that revokes it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def revoke(lab: Lab) -> None:
    lab.known_hosts.write_text(f"{lab.known_hosts.read_text()}@revoked * {lab['node-b'].key.public}\n")


FAULT = Fault(
    breaks=revoke,
    stage="reach",
    cause="ssh-host-key-changed",
    nodes="node-b",
    says=(r"known_hosts:3 has revoked",),
    unreachable=True,
    within_s=5,
)
