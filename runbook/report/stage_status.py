"""What is said of a stage while it runs."""

from __future__ import annotations

from runbook.model.events import Progress
from runbook.model.fold import fold
from runbook.report.record import StageRecord
from runbook.report.text import cells, one_line

LONGEST = 60  # cells of names that are still read at a glance


def progress_text(event: Progress) -> str:
    """`gn03 rank 5: joined`; the node and the rank are put before a text that does not name them itself."""
    says = one_line(event.text)
    who = []
    if event.node and event.node not in says:
        who.append(one_line(event.node))
    if event.rank is not None and f"rank {event.rank}" not in says:
        who.append(f"rank {event.rank}")
    return f"{' '.join(who)}: {says}" if who and says else says


def waiting(stage: StageRecord) -> str:
    """How many have answered, and who is still awaited once somebody has."""
    silent, nodes = stage.silent, len(stage.started.nodes)
    answered = f"{nodes - len(silent)}/{nodes} nodes"
    names = one_line(fold(silent))
    return f"{answered} · waiting for {names}" if stage.reached and silent and cells(names) < LONGEST else answered
