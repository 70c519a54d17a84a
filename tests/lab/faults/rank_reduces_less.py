"""One rank reduces fewer elements than the others, and gloo ends that one with SIGABRT."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"],
        "if called == 4:\n    args = (args[0][: args[0].numel() // 2], *args[1:])\nreturn real(*args, **options)",
    ),
    stage="small",
    cause="mismatched-collectives",
    nodes="node-b",
    hosts=3,
    within_s=12,
)
