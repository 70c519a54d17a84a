"""A rank joins and does well, until it waits for something else than the AllReduce that the others are in."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], "if called == 4:\n    time.sleep(1000)\nreturn real(*args, **options)"),
    stage="small",
    cause="rank-behind",
    nodes="node-b",
    says=(r"never called all_reduce", r"sitecustomize\.py"),
    torchrun=True,
    within_s=14,
)
