"""Is a failed job worth another attempt, and after how many seconds?"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.causes.catalogue import causes_of_kind
from runbook.checks.context import Context
from runbook.jobs.attempt import Attempt
from runbook.model.verdict import Outcome, Verdict

FIRST_RETRY_INTERVAL_S = 10.0
"""Seconds before the second attempt; each further wait is twice as long."""
MAX_RETRY_INTERVAL_S = 300.0
"""The most seconds before an attempt."""
JITTER = 0.1
"""The part of the wait by which chance makes it longer or shorter."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether another attempt is made, why (in words, may be empty), and after how many seconds."""

    again: bool
    why: str
    after_s: float = 0.0


def decide_retry(
    causes: Sequence[str],
    retries: int,
    *,
    may_be_gone: bool = False,
    replaced: bool = False,
    chance: random.Random | None = None,
) -> Decision:
    """Whether to make another attempt after failed attempts with these causes, the latest last. `retries`: how many
    attempts may follow the first. `may_be_gone`: the playbook asks for another attempt after the event that ended the
    last one. `replaced`: a spare takes the place of the node with the cause."""
    cause, made = causes[-1], len(causes)
    if retries == 0:
        return Decision(again=False, why="")
    if replaced and made <= retries:
        return Decision(again=True, why=f"a spare takes its place: attempt {made + 1} of {retries + 1}")
    if cause not in causes_of_kind("transient") | causes_of_kind("once") and not may_be_gone:
        return Decision(again=False, why=f"{cause} would come again: not tried again")
    if cause in causes_of_kind("once") and not may_be_gone and made > 1 and causes[-2] == cause:
        return Decision(again=False, why=f"{cause} happened twice in a row: not tried again")
    if made > retries:
        return Decision(again=False, why=f"tried {made} times")
    wait = min(MAX_RETRY_INTERVAL_S, FIRST_RETRY_INTERVAL_S * 2 ** (made - 1))
    wait *= 1 + JITTER * (chance or random.Random()).uniform(-1, 1)
    return Decision(
        again=True, why=f"{cause} may be gone: attempt {made + 1} of {retries + 1} in {wait:.0f} s", after_s=wait
    )


def judge_retry(
    at: Context,
    attempt: Attempt,
    outcomes: list[Outcome],
    causes: list[str],
    *,
    stalled: bool,
    gone: Mapping[str, str],
) -> tuple[list[Outcome], float | None, Mapping[str, str]]:
    """Three things: the outcomes of an attempt, with the decision about another attempt as evidence; the seconds until
    the next attempt, None for no further one; and the nodes that spares replace in it, which are either all of the
    `gone` nodes or none. `causes` are those of the attempts before; this attempt's cause is added. `stalled`: a stall
    ended the attempt."""
    guilty = _failure_outcome(outcomes)
    if guilty is None or at.stopping.is_set():
        return outcomes, None, {}
    causes.append(guilty.findings[0].cause)
    job = attempt.job
    leaving = gone if len(gone) <= len(job.spares) else {}
    if stalled and job.launch.watch and job.launch.watch.on_stall == "stop":
        return outcomes, None, leaving
    decision = decide_retry(causes, job.launch.retries, may_be_gone=stalled, replaced=bool(leaving))
    if decision.again and time.monotonic() + decision.after_s > at.deadline:
        decision = Decision(again=False, why=f"the stage's `timeout:` leaves no time for attempt {attempt.number + 1}")
    if decision.why:
        failed = {"failed": {"attempt": attempt.folder, "cause": causes[-1]}}
        at.say(
            f"attempt {attempt.number} failed: {guilty.findings[0].says}; {decision.why}", node=guilty.node, data=failed
        )
    judged = [one.with_evidence(decision.why) if one is guilty else one for one in outcomes]
    return judged, decision.after_s if decision.again else None, leaving


def _failure_outcome(outcomes: list[Outcome]) -> Outcome | None:
    """The outcome that says why the attempt failed; None if it did not fail."""
    failed = [outcome for outcome in outcomes if outcome.verdict is Verdict.FAIL]
    unknown = [outcome for outcome in outcomes if outcome.verdict is Verdict.UNKNOWN]
    bad = [*failed, *unknown]
    return next((outcome for outcome in bad if outcome.findings[0].cause != "peer-died"), bad[0] if bad else None)
