"""torch is there, and a shared library of it is not."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    breaks=lambda lab: lab["node-b"].write(
        "/opt/other/torch/__init__.py", "import ctypes\nctypes.CDLL('libcublas.so.12')\n"
    ),
    inventory=lambda lab: {"nodes": {"node-b": {"env": {"PYTHONPATH": "/opt/other"}}}},
    stage="reach",
    ranks=True,
    cause="program-error",
    nodes="node-b",
    says=(r"libcublas.so.12",),
    within_s=6,
)
