"""One rank reduces twice as many elements as the others: gloo ends the other one with SIGABRT."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"], "if called == 4:\n    args = (args[0].repeat(2), *args[1:])\nreturn real(*args, **options)"
    ),
    stage="small",
    cause="mismatched-collectives",
    nodes="node-b",
    says=(r"rank 1 on node-b",),
    within_s=10,
)
