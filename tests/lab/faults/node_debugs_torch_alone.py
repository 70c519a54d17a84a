"""One node alone has TORCH_DISTRIBUTED_DEBUG=DETAIL: torch makes further calls there, in which it waits for the others."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].sshd_options(SetEnv="TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    stage="reach",
    ranks=True,
    cause="mismatched-collectives",
    nodes="node-b",
    says=(r"node-b has TORCH_DISTRIBUTED_DEBUG=DETAIL, node-a not",),
    within_s=8,
)
