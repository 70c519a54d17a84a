"""One node has a card less, and nothing was promised: it works, at the smaller number's pace, and is warned of."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric({"node-a": ["mlx5_0", "mlx5_1"], "node-b": ["mlx5_0"]})


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {}},
    cause=None,
    says=(r"NCCL would use \d ports? here .* rails do not match",),
    within_s=16,
)
