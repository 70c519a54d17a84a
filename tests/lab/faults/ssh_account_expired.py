"""The key is right and the account has expired: sshd hangs up without a word."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].run(["chage", "-E", "1", lab.user], "root")
    lab["node-b"].sshd_options(UsePAM="yes")


FAULT = Fault(
    breaks=breaks,
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"refuses the account", r"chage -E -1"),
    unreachable=True,
    within_s=6,
)
