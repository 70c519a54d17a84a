"""Times of a stage that contradict each other, and a tag that means something elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.checks.base import Check
from runbook.lint.staging import Staged
from runbook.model.errors import Problem
from runbook.model.units import seconds_text


def timeouts(staged: Staged) -> Iterator[Problem]:
    timeout = staged.stage.timeout_s
    check = staged.planned.check if staged.planned else None
    if timeout is None or check is None:
        return
    shown = seconds_text(timeout)
    where = staged.span("timeout")
    if check.user_job is not None:
        start = check.user_job.start_timeout_s
        if start is not None and start > timeout:
            message = f"the nodes may take {seconds_text(start)} to be ready, and the launch {shown} in all"
            help = (
                "`timeout` is for the whole program, `start_timeout` for the time until every node is ready to start it"
            )
            yield Problem("playbook.start-timeout-above-timeout", message, where, help)
        return
    budget, stall = _seconds(check, "budget"), _seconds(check, "stall")
    if budget is not None and timeout < budget:
        message = f"the timeout of {shown} comes before the stage's own budget of {seconds_text(budget)} is used up"
        help = "leave `timeout` out: it is then the budget and what joining may take on top"
        yield Problem("playbook.timeout-below-budget", message, where, help)
    if stall is not None and timeout < stall:
        message = f"the timeout of {shown} comes before {seconds_text(stall)} of silence count as a stall"
        help = "a stall names the rank that is behind, a timeout does not: make `stall` shorter"
        yield Problem("playbook.stall-above-timeout", message, where, help)


def ansible_tag(staged: Staged) -> Iterator[Problem]:
    if "never" in staged.stage.tags:
        message = "the tag `never` keeps no stage from running, as it would in Ansible"
        help = "leave the stage out with --skip-tags, or remove the tag"
        yield Problem("playbook.ansible-tag", message, staged.span("tags"), help)


def _seconds(check: Check, name: str) -> float | None:
    value = getattr(check, name, None)
    return float(value) if isinstance(value, int | float) else None
