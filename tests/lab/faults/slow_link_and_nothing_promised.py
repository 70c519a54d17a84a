"""The first size takes ten seconds over a slow link, and nobody asked for more: no stall, and slow only beside a promise."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab.limit(20),
    arguments=("-e", "min_bytes=16M", "-e", "max_bytes=16M", "-e", "iterations=1"),
    cause=None,
    says=(r"busbw 0\.00\d+ GB/s at 16 MiB",),
    within_s=40,
)
"""Not bound by the speed of a verdict: 32 MiB have to cross 20 Mbit/s twice and more."""
