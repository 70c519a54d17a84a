"""A banner, and a .bashrc that prints megabytes on both streams."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def chatter(lab: Lab) -> None:
    """Two megabytes on each stream are more than a channel holds for a reader who does not come."""
    lab["node-b"].write("~/.bashrc", "yes '*** Welcome! ***' | head -c 3000000 | tee /dev/stderr\n", user=lab.user)
    lab["node-b"].write("/etc/banner", "Authorised use only.\n" * 40)
    lab["node-b"].sshd_options(Banner="/etc/banner")


FAULT = Fault(
    breaks=chatter,
    cause=None,
    within_s=10,
)
