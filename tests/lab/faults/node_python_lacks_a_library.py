"""The interpreter is there, and the loader finds no library of its: it ends with the code of a command that is not there."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault

SAYS = "error while loading shared libraries: libpython3.11.so.1.0: cannot open shared object file"


def breaks(lab: Lab) -> None:
    lab["node-b"].tool("python3.11-moved", f"echo '/opt/conda/bin/python: {SAYS}' >&2; exit 127")


FAULT = Fault(
    breaks=breaks,
    inventory=lambda _: {"nodes": {"node-b": {"python": "/usr/local/bin/python3.11-moved"}}},
    stage="reach",
    cause="python-missing",
    nodes="node-b",
    says=(r"does not start on node-b: .*libpython3\.11\.so\.1\.0",),
    within_s=4,
)
