"""Two of four nodes add something wrong to every sum: both are named, and no other."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.wrong_collectives import meddle

CODE = "if args[0].numel() > 100:\n    args[0][7] += 3\nreturn real(*args, **options)"


def breaks(lab: Lab) -> None:
    for name in ("node-b", "node-d"):
        meddle(lab[name], CODE)


FAULT = Fault(
    breaks=breaks,
    hosts=4,
    stage="small",
    cause="allreduce-wrong-data",
    nodes=("node-b", "node-d"),
    says=(r"ranks 1, 3 contribute wrong data",),
    within_s=10,
)
