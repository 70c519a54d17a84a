"""What a rank's own words mean: the same catalogue that reads logs, since its ranks and anybody's print the same."""

from __future__ import annotations

from collections.abc import Iterable

from runbook.causes.catalogue import of_kind
from runbook.diagnose.judge import Cause, judge


def meaning(lines: Iterable[str]) -> Cause | None:
    """The cause that these lines show; None where they are an error like any other, or prove too little."""
    from runbook.diagnose.catalogue import scanner  # takes a moment: only for a rank that failed

    scan = scanner()
    scan.feed("rank", ["\n".join(lines).encode()])
    found = judge(scan)
    if not found or found[0].confidence == "low" or found[0].cause in of_kind("vague") | of_kind("consequence"):
        return None
    return found[0]
