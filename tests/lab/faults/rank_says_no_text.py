"""A rank fails with a message that holds a file name of no encoding."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

CODE = "if called == 3:\n    open(b'/data/caf\\xe9')\nreturn real(*args, **options)"

FAULT = Fault(
    breaks=lambda lab: meddle(lab["node-b"], CODE),
    stage="small",
    cause="program-error",
    nodes="node-b",
    says=(r"FileNotFoundError: .*/data/caf",),
    within_s=6,
)
