"""The jump host lets us in and passes nothing on."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-c"].sshd_options(AllowTcpForwarding="no"),
    inventory=lambda lab: {
        "nodes": {"node-c": None, "node-b": {"ssh": {"jump": f"{lab.user}@{lab['node-c'].address}"}}}
    },
    hosts=3,
    stage="reach",
    cause="ssh-jump-failed",
    nodes="node-b",
    says=(r"allowtcpforwarding",),
    unreachable=True,
    within_s=6,
)
