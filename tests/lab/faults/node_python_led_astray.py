"""PYTHONHOME leads to no Python, so that none starts: what it says of that is in the finding."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    inventory=lambda lab: {"nodes": {"node-b": {"env": {"PYTHONHOME": "/opt/nowhere"}}}},
    stage="reach",
    ranks=True,
    cause="python-missing",
    nodes="node-b",
    says=(r"No module named 'encodings'", r"PYTHONHOME"),
    within_s=5,
)
