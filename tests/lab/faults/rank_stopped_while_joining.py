"""A rank stops as it joins the process group."""

from __future__ import annotations

from lab.fault import Fault
from lab.wrong_collectives import meddle

FAULT = Fault(
    breaks=lambda lab: meddle(
        lab["node-b"], "os.kill(os.getpid(), signal.SIGSTOP)\nreturn real(*args, **options)", "init_process_group"
    ),
    stage="connection",
    cause="rank-stopped",
    nodes="node-b",
    says=(r"kill -CONT \d+", r"last step: connected"),
    within_s=14,
)
