"""ibstat stops in the middle of its list: the port that it did tell of is sound, and that proves nothing of the other."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def breaks(lab: Lab) -> None:
    lab.fabric(["mlx5_0", "mlx5_1"])
    host = lab["node-b"]
    whole = host.run(["ibstat"], "root").stdout
    host.write("/run/ibstat.txt", whole[: whole.rindex("State:")])
    host.tool("ibstat", "cat /run/ibstat.txt; echo 'ibpanic: [77] main: stat of IB device mlx5_1 failed' >&2; exit 255")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="tool-output-unknown",
    nodes="node-b",
    unreachable=True,
    says=(r"does not show every port in full",),
    within_s=8,
)
