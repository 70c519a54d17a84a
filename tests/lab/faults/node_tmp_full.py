"""/tmp is full: nothing of ours needs it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].run("mount -t tmpfs -o size=4k lab /tmp; cat /dev/zero >/tmp/zeros; true", "root"),
    cause=None,
    within_s=10,
)
