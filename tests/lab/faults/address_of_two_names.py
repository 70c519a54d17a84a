"""Two nodes of the inventory have one address: a line that was copied and not finished."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {
        "nodes": {"node-b": {"address": lab["node-a"].address, "ssh": {"host": lab["node-b"].address}}}
    },
    stage="ping",
    cause="duplicate-address",
    nodes="node-b",
    says=(r"node-a",),
    within_s=5,
)
