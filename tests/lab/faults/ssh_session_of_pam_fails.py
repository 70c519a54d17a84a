"""The login succeeds, and a PAM module refuses to open the session."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    rules = "auth required pam_permit.so\naccount required pam_permit.so\nsession required pam_deny.so\n"
    lab["node-b"].write("/etc/pam.d/sshd", rules)
    lab["node-b"].sshd_options(UsePAM="yes")


FAULT = Fault(
    breaks=breaks,
    stage="reach",
    cause="login-shell-failed",
    nodes="node-b",
    says=(r"PAM session",),
    unreachable=True,
    within_s=6,
)
