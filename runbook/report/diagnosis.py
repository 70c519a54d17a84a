"""What `diagnose` tells: one cause with its proof, what follows from it folded under it, what was ruled out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from runbook.causes.logs.judge import HANGS, Cause
from runbook.causes.page import CausePage
from runbook.report.text import one_line

VERSION = 1
SET_UP = "nothing says that anything failed, and nothing after the setup shows that it went on or ended"
QUOTED = 4  # lines of proof in the text
WIDE = 160  # columns of a quoted line
SURE = {"high": "", "medium": " (likely)", "low": " (possible)"}


def as_json(causes: Sequence[Cause], pages: Mapping[str, CausePage]) -> str:
    """The document of `-o json`."""
    told = [
        {
            "cause": cause.cause,
            "confidence": cause.confidence,
            "rank": cause.rank,
            "node": cause.node,
            "evidence": [
                {"file": hit.line.source, "line": hit.line.number, "text": hit.line.shown} for hit in cause.evidence
            ],
            "says": one_line(cause.says),
            "remedy": remedy(cause, pages),
        }
        for cause in causes
    ]
    return json.dumps({"version": VERSION, "causes": told}, indent=2, ensure_ascii=False) + "\n"


def as_text(
    causes: Sequence[Cause], pages: Mapping[str, CausePage], *, files: int, lines: int, went_on: bool = True
) -> str:
    """The page that a person reads. `went_on`: some line shows more than how a run is set up."""
    read = f"{lines} line{'s' * (lines != 1)} of {files} file{'s' * (files != 1)} read"
    if not causes:
        if went_on:
            return f"healthy: nothing in these logs says that anything failed ({read})\n"
        return f"no failure so far: {SET_UP} ({read})\n  next       {HANGS}\n"
    root, *rest = causes
    out = list(_block(root, pages))
    out += [line for cause in rest if cause.follows for line in _folded(cause)]
    if root.confidence != "high" and root.ruled_out:
        out.append(f"  ruled out  {', '.join(root.ruled_out)}: their lines are not here")
    out.append(f"  more       runbook explain {root.cause}")
    for cause in rest:
        if not cause.follows:
            out += ["", *_block(cause, pages), f"  more       runbook explain {cause.cause}"]
    return "\n".join([*out, "", read]) + "\n"


def remedy(cause: Cause, pages: Mapping[str, CausePage]) -> str:
    """The rule's own remedy, else the one on the cause's page."""
    return cause.remedy or (pages[cause.cause].remedy if cause.cause in pages else "")


def _block(cause: Cause, pages: Mapping[str, CausePage]) -> Iterator[str]:
    where = ", ".join(
        part for part in (f"rank {cause.rank}" if cause.rank is not None else "", cause.node or "") if part
    )
    yield f"{cause.cause}{SURE[cause.confidence]}" + (f" · {where}" if where else "")
    yield f"  {one_line(cause.says)}"
    label = "proof"
    for hit in cause.evidence[:QUOTED]:
        text = one_line(hit.line.shown)
        yield f"  {label:<9}  {hit.line.source}:{hit.line.number}: {text[:WIDE] + '…' if len(text) > WIDE else text}"
        label = ""
    if page := pages.get(cause.cause):
        yield f"  why        {page.why}"
        yield f"  confirm    {page.confirm}"
    yield f"  fix        {remedy(cause, pages)}"


def _folded(cause: Cause) -> Iterator[str]:
    where = f"{cause.evidence[0].line.source}:{cause.evidence[0].line.number}: " if cause.evidence else ""
    says = one_line(cause.says)
    yield f"  follows    {cause.cause}: {where}{says[:WIDE] + '…' if len(says) > WIDE else says}"
