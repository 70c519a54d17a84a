"""Whether a failed job is worth another try, and after how long."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from runbook.causes.catalogue import of_kind

FIRST_S = 10.0
LONGEST_S = 300.0
JITTER = 0.1


@dataclass(frozen=True, slots=True)
class Decision:
    again: bool
    why: str
    after_s: float = 0.0


def decide(
    causes: Sequence[str],
    retries: int,
    *,
    may_be_gone: bool = False,
    replaced: bool = False,
    chance: random.Random | None = None,
) -> Decision:
    """After failed tries with these causes, the last one's last: try again or not. `retries` are those after the first;
    `may_be_gone`: whoever wrote the playbook wants another try after what ended the last one; `replaced`: the node with the
    cause leaves, and a spare comes for it."""
    cause, made = causes[-1], len(causes)
    if retries == 0:
        return Decision(False, "")
    if replaced and made <= retries:
        return Decision(True, f"a spare takes its place: attempt {made + 1} of {retries + 1}")
    if cause not in of_kind("transient") | of_kind("once") and not may_be_gone:
        return Decision(False, f"{cause} would be the same again: not tried again")
    if cause in of_kind("once") and not may_be_gone and made > 1 and causes[-2] == cause:
        return Decision(False, f"{cause} a second time is no chance: not tried again")
    if made > retries:
        return Decision(False, f"tried {made} times")
    wait = min(LONGEST_S, FIRST_S * 2 ** (made - 1))
    wait *= 1 + JITTER * (chance or random.Random()).uniform(-1, 1)
    return Decision(True, f"{cause} may be gone: attempt {made + 1} of {retries + 1} in {wait:.0f} s", wait)
