"""`runbook explain ID`: the page of a check, or what a cause means."""

from __future__ import annotations

import sys
from importlib import resources

from runbook.causes.catalogue import CAUSES
from runbook.checks import CHECKS
from runbook.load.didyoumean import did_you_mean
from runbook.model.errors import FilesWrong, Problem


def explain(id: str | None) -> int:
    if id is None:
        lines = ["checks:", *(f"  {name}" for name in CHECKS), "", "causes:"]
        lines += [f"  {name:<34} {what}" for name, what in CAUSES.items()]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    if id in CHECKS:
        sys.stdout.write(resources.files("runbook.checks").joinpath(f"{id}.md").read_text(encoding="utf-8"))
        return 0
    if id in CAUSES:
        sys.stdout.write(f"{id}: {CAUSES[id]}\n" + where_found(id))
        return 0
    known = [*CHECKS, *CAUSES]
    raise FilesWrong(
        [Problem("arguments.unknown-id", f"there is no check or cause {id!r}", help=did_you_mean(id, known))]
    )


def where_found(cause: str) -> str:
    """The sections of the checks' pages that speak of this cause."""
    found: list[str] = []
    for name in CHECKS:
        page = resources.files("runbook.checks").joinpath(f"{name}.md").read_text(encoding="utf-8")
        found += [f"\nchecked by {name}: {line[2:]}\n" for line in page.splitlines() if line.startswith(f"- `{cause}`")]
    return "".join(found)
