"""ufw is on, with ssh allowed and its default: deny what comes in."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def ufw(lab: Lab) -> None:
    lab["node-a"].run("ufw allow 22/tcp && ufw --force enable", "root")


FAULT = Fault(
    breaks=ufw,
    stage="firewall",
    cause="firewall-drop",
    nodes="node-a",
    says=(
        r"node-a drops TCP 29500-29510, \d+",
        r"why .*32768-60999",
        r"fix on node-a ",
        r"ufw default policy",
        r"sudo ufw allow from [\d.]+ to any port 29500:29510,32768:60999 proto tcp",
    ),
    mends=True,
    torchrun=True,
    quick=True,
    within_s=9,
)
