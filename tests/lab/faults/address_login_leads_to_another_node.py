"""The login of one node of three leads to the machine of another: a line that was copied, and its address alone corrected."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=3,
    inventory=lambda lab: {"nodes": {"node-c": {"ssh": {"host": lab["node-b"].address}}}},
    stage="ping",
    cause="master-addr-wrong-host",
    nodes="node-c",
    says=(r"the login to node-c leads to the machine of node-b",),
    within_s=5,
)
