"""One rank broadcasts where the other reduces: both wait, in the same place of their programs."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"],
        "if called == 4:\n    return sys.modules['torch.distributed'].broadcast(args[0], 0)\nreturn real(*args, **options)",
    ),
    stage="small",
    cause="mismatched-collectives",
    nodes="node-b",
    says=(r"called broadcast", r"called all_reduce"),
    within_s=12,
)
