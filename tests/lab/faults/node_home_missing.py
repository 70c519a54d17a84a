"""The account has no home folder."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def forget(lab: Lab) -> None:
    """The key lies elsewhere, as with keys from a directory service; the home folder was never made."""
    lab["node-b"].run(
        f"cp {lab['node-b'].home}/.ssh/authorized_keys /etc/ssh/lab_keys; chmod 644 /etc/ssh/lab_keys; rm -r {lab['node-b'].home}",
        "root",
    )
    lab["node-b"].sshd_options(AuthorizedKeysFile="/etc/ssh/lab_keys")


FAULT = Fault(
    breaks=forget,
    stage="reach",
    cause="workdir-not-writable",
    nodes="node-b",
    says=(r"home folder",),
    mends=True,
    within_s=6,
)
