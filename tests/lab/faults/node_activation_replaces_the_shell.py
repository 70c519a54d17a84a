"""The activate line ends in another shell: that one is given nothing to do, ends well, and nothing starts after it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"activate": "exec bash"}}},
    stage="reach",
    ranks=True,
    cause="activation-failed",
    nodes="node-b",
    says=(r"does not return", r"take `exec`"),
    within_s=5,
)
