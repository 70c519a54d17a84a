"""No fault: a cloud lends bandwidth for the first sizes, and what it then leaves is more than the gate asks for."""

from __future__ import annotations

from lab import Lab
from lab.fault import Fault
from lab.processes import call


def lend(lab: Lab) -> None:
    """80 Mbit/s, after 330 MiB as fast as they go: three iterations of 16 and 32 MiB, and a part of 64 MiB."""
    for host in lab:
        bucket = ["tbf", "rate", "80mbit", "burst", str(330 << 20), "latency", "200ms"]
        call(["tc", "-n", host.netns, "qdisc", "replace", "dev", host.interface, "root", *bucket])


FAULT = Fault(
    breaks=lend,
    arguments=(
        "-e",
        "min_bytes=16M",
        "-e",
        "max_bytes=64M",
        "-e",
        "budget=60s",
        "-e",
        "iterations=3",
        "-e",
        "gate=0.004",
    ),
    cause=None,
    says=(r"gate 0\.004 GB/s",),
    within_s=40,
)
"""Not bound by the speed of a verdict: the last size takes its time."""
