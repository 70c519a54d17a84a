"""The node shows another host key than the known one, as after a reinstall."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].rekey(),
    stage="reach",
    cause="ssh-host-key-changed",
    nodes="node-b",
    says=(r"ssh-keygen",),
    unreachable=True,
    quick=True,
    within_s=6,
)
