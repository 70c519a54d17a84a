"""What one rank receives is spoilt whatever is added up: also what ranks would agree by, if they agreed by sums."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

CODE = """\
work = real(*args, **options)
if work is not None:
    work.wait()
args[0].view(-1)[0] = float('nan')
return work
"""

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], CODE),
    stage="small",
    cause="allreduce-wrong-data",
    nodes="node-b",
    says=(r"rank 1 contributes wrong data", r"element 0 is nan"),
    quick=True,
    within_s=8,
)
