"""One rank contributes a wrong element, as broken memory does."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"], "if args[0].numel() > 200:\n    args[0][200] += 1\nreturn real(*args, **options)"
    ),
    stage="small",
    cause="allreduce-wrong-data",
    nodes="node-b",
    says=(r"element 200 is", r"rank 1 contributes wrong data"),
    quick=True,
    within_s=8,
)
