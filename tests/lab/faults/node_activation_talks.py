"""The activate line prints megabytes, reads its input and goes elsewhere, and is fine."""

from __future__ import annotations

from lab.fault import Fault

LINE = "yes modules | head -c 3000000; yes warning | head -c 3000000 >&2; cd /; cat >/dev/null"

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"activate": LINE}}},
    cause=None,
    within_s=10,
)
