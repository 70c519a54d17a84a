"""A rank ends with a traceback of its own in the middle of a sweep."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"], "if called == 4:\n    raise KeyError('learning_rate')\nreturn real(*args, **options)"
    ),
    stage="small",
    cause="program-error",
    nodes="node-b",
    says=(r"KeyError: 'learning_rate' at .*sitecustomize\.py:\d+ in meddled",),
    within_s=8,
)
