"""The key is taken, and PAM wants a new password before anything runs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].run(["chage", "-d", "0", lab.user], "root")
    lab["node-b"].sshd_options(UsePAM="yes")


FAULT = Fault(
    breaks=breaks,
    stage="reach",
    cause="ssh-auth-failed",
    nodes="node-b",
    says=(r"password, which has expired", r"chage"),
    unreachable=True,
    within_s=6,
)
