"""All nodes agree, and it is this machine's clock that is wrong: no fault of theirs."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def shift(lab: Lab) -> None:
    for host in lab:
        host.clock_offset(40)


FAULT = Fault(
    breaks=shift,
    cause=None,
    says=(r"this machine",),
    within_s=10,
)
