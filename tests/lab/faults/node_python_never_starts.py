"""The interpreter that the inventory names is a wrapper that waits, as one does for a licence or a dead file server."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].tool("python of ours", "sleep 300"),
    inventory=lambda lab: {"nodes": {"node-b": {"python": "/usr/local/bin/python of ours"}}},
    stage="reach",
    cause="python-missing",
    nodes="node-b",
    says=(r"python of ours on node-b does not start", r"time '/usr/local/bin/python of ours' -S"),
    within_s=20,
)
