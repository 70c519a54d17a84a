"""The Python that the inventory names has no torch."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"python": lab.python_without_torch}}},
    stage="reach",
    cause="torch-missing",
    ranks=True,
    nodes="node-b",
    says=(r"-m pip install torch",),
    quick=True,
    within_s=6,
)
