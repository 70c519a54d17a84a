"""One rank leaves an AllReduce out and goes on: from there on it is one call ahead."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], "if called == 4:\n    return None\nreturn real(*args, **options)"),
    stage="small",
    cause="mismatched-collectives",
    nodes="node-b",
    within_s=16,
)
