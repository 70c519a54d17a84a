"""A rank ends with exit code 0 before the work is done."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], "if called == 4:\n    os._exit(0)\nreturn real(*args, **options)"),
    stage="small",
    cause="program-error",
    nodes="node-b",
    says=(r"exited with code 0 before its work was done",),
    within_s=8,
)
