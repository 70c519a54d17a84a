"""One session a connection, and no SFTP: we need no more."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(MaxSessions="1", Subsystem="sftp /bin/false"),
    cause=None,
    within_s=10,
)
