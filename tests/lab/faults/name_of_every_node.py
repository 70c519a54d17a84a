"""No fault: the inventory gives every address as a name, and the names are right."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {name: {"address": name} for name in lab.names}},
    cause=None,
    within_s=8,
)
