"""Of three nodes two have each other's address in the inventory, and SSH leads to the right ones."""

from __future__ import annotations

from typing import Any

from lab import Lab
from lab.fault import Fault


def swapped(lab: Lab) -> dict[str, Any]:
    one, other = lab["node-b"], lab["node-c"]
    return {
        "nodes": {
            "node-b": {"address": other.address, "ssh": {"host": one.address}},
            "node-c": {"address": one.address, "ssh": {"host": other.address}},
        }
    }


FAULT = Fault(
    hosts=3,
    inventory=swapped,
    stage="ping",
    cause="master-addr-wrong-host",
    nodes=("node-b", "node-c"),
    says=(r"it is node-c's", r"it is node-b's"),
    within_s=5,
)
