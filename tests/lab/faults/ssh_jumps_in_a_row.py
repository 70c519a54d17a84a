"""No fault: the way to one node leads through two jump hosts, as OpenSSH writes it."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    hosts=4,
    inventory=lambda lab: {
        "nodes": {
            "node-c": None,
            "node-d": None,
            "node-b": {"ssh": {"jump": ",".join(f"{lab.user}@{lab[name].address}" for name in ("node-c", "node-d"))}},
        }
    },
    cause=None,
    within_s=9,
)
