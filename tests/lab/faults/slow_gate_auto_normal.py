"""`min_busbw_gbytes: auto`: links of 100 Mbit/s are slow, and yet as fast as they can be."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault


def as_fast_as_they_say(lab: Lab) -> None:
    for host in lab:
        host.network_card(100)
        host.limit_incoming(100)


FAULT = Fault(
    breaks=as_fast_as_they_say,
    arguments=("-e", "min_bytes=4M", "-e", "max_bytes=4M", "-e", "budget=20s", "-e", "iterations=2", "-e", "gate=auto"),
    cause=None,
    says=(r": 11.0 to 12.0 MB/s is normal for gloo, 2 nodes of 1 rank over TCP on 0.1 Gbit/s",),
    within_s=12,
)
