"""ibstat does not start, for want of a library: that is no word about the HCAs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

LOADER = "ibstat: error while loading shared libraries: libibumad.so.3: cannot open shared object file: No such file or directory"


def breaks(lab: Lab) -> None:
    lab.fabric()
    lab["node-b"].tool("ibstat", f"echo '{LOADER}' >&2; exit 127")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _lab: {"infiniband": {"hca": "mlx5"}},
    stage="ibstat",
    cause="tool-output-unknown",
    nodes="node-b",
    unreachable=True,
    says=(r"libibumad",),
    within_s=12,
)
