"""A rank is stopped while it imports torch: its silence is looked into, and not waited out."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import at_start

CODE = "import threading\nthreading.Timer(0.8, lambda: os.kill(os.getpid(), 19)).start()"

FAULT = Fault(
    breaks=lambda lab: at_start(lab["node-b"], CODE),
    stage="reach",
    ranks=True,
    cause="rank-stopped",
    nodes="node-b",
    says=(r"kill -CONT \d+",),
    within_s=10,
)
