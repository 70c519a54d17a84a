"""`min_busbw_gbytes: auto` on hardware that the table does not know: no fault, but said."""

from __future__ import annotations

from lab.fault import Fault

FAULT = Fault(
    arguments=("-e", "gate=auto"),
    cause=None,
    says=(r"auto: busbw .* was not judged, no number is known for gloo, 2 nodes", r"give `min_busbw_gbytes:` yourself"),
    within_s=8,
)
