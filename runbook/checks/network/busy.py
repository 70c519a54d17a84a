"""Nodes that had no CPU for being measured: what they did not hear, and what nobody heard from them, proves nothing."""

from __future__ import annotations

from collections.abc import Iterable

from runbook.checks.context import Facts
from runbook.model.verdict import Finding

TOO_BUSY = "node-too-busy"

LATE_S = 0.5
"""A program that was kept from its CPU for so long at a time may be what the other end took for silence."""


def sleepy(awake: Facts) -> bool:
    """Whether a program ran so late, or was so short of descriptors, that somebody may have taken it for silent."""
    return float(awake["latest_s"]) >= LATE_S or int(awake.get("shut_out", 0)) > 0


def too_busy(node: str, awake: Facts | None, what: str) -> Finding:
    """`awake`: how late the program on the node ran, where it could tell. `what` could not be measured there."""
    seen = awake or {}
    late = (
        f"our program got no CPU for {seen['latest_s']:.1f} s at a time" if seen else "our program got no CPU in time"
    )
    lines = [f"{node}: {late}"]
    if seen.get("late_s") is not None:
        lines.append(f"{node}: {seen['late_s']:.1f} of {seen['seconds']:.1f} s it should have run and did not")
    if seen.get("pressure") is not None:
        lines.append(
            f"{node}: for {seen['pressure']:.0f} % of the last 10 s somebody there waited for a CPU (/proc/pressure/cpu)"
        )
    if seen.get("shut_out"):
        lines.append(f"{node}: {seen['shut_out']} connections found no free descriptor there (`ulimit -n`)")
    return too_busy_finding(node, f"{what}; {late}", lines)


def too_busy_finding(node: str, seen: str, evidence: Iterable[str]) -> Finding:
    """`seen`: what could not be measured, and how late the node ran."""
    return Finding(
        TOO_BUSY,
        f"{node} was too busy to be measured: {seen}",
        f"see what runs on {node} (`top -b -n 1 | head -15`), end it or wait for it, and run again",
        tuple(evidence),
    )


def busiest(one: Facts | None, other: Facts) -> Facts:
    """Of two reports of one node the one that tells of the longer pause."""
    return other if one is None or float(other["latest_s"]) >= float(one["latest_s"]) else one
