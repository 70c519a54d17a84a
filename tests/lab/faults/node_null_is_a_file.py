"""/dev/null is a file that only root may write, as a careless script leaves it."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab["node-b"].run("touch /run/null; chmod 600 /run/null; mount --bind /run/null /dev/null", "root")


FAULT = Fault(
    breaks=breaks,
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"cannot write to /dev/null", r"mknod -m 666 /dev/null c 1 3"),
    within_s=4,
)
