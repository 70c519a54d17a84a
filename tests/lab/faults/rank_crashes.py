"""A rank reads where it must not, in native code."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"], "if called == 4:\n    import ctypes\n    ctypes.string_at(8)\nreturn real(*args, **options)"
    ),
    stage="small",
    cause="rank-crashed",
    nodes="node-b",
    says=(r"SIGSEGV", r"string_at"),
    torchrun=True,
    within_s=8,
)
