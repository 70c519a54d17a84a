"""One rank does something before each AllReduce, so that the others mostly wait for it."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], "time.sleep(0.02)\nreturn real(*args, **options)"),
    stage="small",
    cause="rank-behind",
    nodes="node-b",
    says=(r"every AllReduce waits for rank 1 on node-b",),
    within_s=10,
)
