"""Prints the result of `diagnose`: the root cause with its proof, its consequences folded under it, and the causes that
are ruled out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from runbook.causes.catalogue import CausePage, remedy_from_page
from runbook.diagnose.judge import Cause
from runbook.model.safe_text import printable_line, visible_text
from runbook.model.units import count_text, first_items_text

DOCUMENT_VERSION = 1
STOPPED_AFTER_SETUP = "no line says that anything failed, and none after the setup shows that it went on or ended"
MAX_DOCUMENT_FILES = 1000  # files of a kind (unread, noted, left aside) that the document lists
MAX_FILES_IN_TEXT = 8  # files that are named in the text
MAX_CAUSE_EVIDENCE_LINES = 4  # lines of proof in the text
MAX_EVIDENCE_LINE_CHARACTERS = 160  # columns of a quoted line
CONFIDENCE_SUFFIXES = {"high": "", "medium": " (likely)", "low": " (possible)"}


@dataclass(frozen=True, slots=True)
class Unread:
    """A file, or a part of one, that was not read or not understood, and why."""

    file: str
    why: str


@dataclass(slots=True)
class Coverage:
    """How completely the files were read. With something `unread` nothing is healthy; `notes` say which parts were read
    in another form than they have in the file; `aside` are files that by their names are no logs. MAX_DOCUMENT_FILES of
    each are kept; further unread files are counted in `more`."""

    unread: list[Unread] = field(default_factory=list)
    notes: list[Unread] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    more: int = 0  # unread files beyond MAX_DOCUMENT_FILES

    def miss(self, file: str, why: str) -> None:
        """Notes that `file` was not read, or not all of it."""
        if len(self.unread) < MAX_DOCUMENT_FILES:
            self.unread.append(Unread(file, why))
        else:
            self.more += 1

    def note(self, file: str, says: str) -> None:
        if len(self.notes) < MAX_DOCUMENT_FILES:
            self.notes.append(Unread(file, says))

    def leave(self, files: Iterable[str]) -> None:
        self.aside += islice(files, MAX_DOCUMENT_FILES - len(self.aside))


def diagnosis_json(causes: Sequence[Cause], pages: Mapping[str, CausePage], coverage: Coverage) -> str:
    """The document of `-o json`; it has `unread`, `notes` and `aside` only if there are any. A consequence has
    `follows`: the cause that it follows from."""
    entries = [
        {
            "cause": cause.cause,
            "confidence": cause.confidence,
            "rank": cause.rank,
            "node": cause.node,
            "evidence": [
                {"file": hit.line.source, "line": hit.line.number, "text": hit.line.shown} for hit in cause.evidence
            ],
            "says": printable_line(cause.says),
            "remedy": remedy_text(cause, pages),
            **({"follows": cause.follows} if cause.follows else {}),
        }
        for cause in causes
    ]
    unread = [{"file": one.file, "why": one.why} for one in coverage.unread]
    if coverage.more:
        unread.append({"file": "", "why": f"and {coverage.more} more"})
    also = {
        "unread": unread,
        "notes": [{"file": one.file, "says": one.why} for one in coverage.notes],
        "aside": coverage.aside,
    }
    document = {"version": DOCUMENT_VERSION, "causes": entries, **{key: value for key, value in also.items() if value}}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def diagnosis_text(
    causes: Sequence[Cause], pages: Mapping[str, CausePage], coverage: Coverage, *, went_on: bool = True
) -> str:
    """The text that a person reads. `went_on`: some line shows more than the setup of a run."""
    read = count_text(coverage.lines, "line") + f" of {count_text(coverage.files, 'file')} read"
    also = "".join(f"{line}\n" for line in _coverage_lines(coverage))
    if not causes:
        if went_on:
            return f"healthy: no line in these logs says that anything failed ({read})\n{also}"
        more = remedy_from_page("insufficient-evidence", "so-far")
        return f"no failure so far: {STOPPED_AFTER_SETUP} ({read})\n  next       {more}\n{also}"
    root, *rest = causes
    out = list(_cause_lines(root, pages))
    out += [line for cause in rest if cause.follows for line in _consequence_lines(cause)]
    if root.confidence != "high" and root.ruled_out:
        out.append(f"  ruled out  {', '.join(root.ruled_out)}: their lines are not here")
    out.append(f"  more       runbook explain {root.cause}")
    for cause in rest:
        if not cause.follows:
            out += ["", *_cause_lines(cause, pages), f"  more       runbook explain {cause.cause}"]
    return "\n".join([*out, "", read]) + f"\n{also}"


def _coverage_lines(coverage: Coverage) -> Iterator[str]:
    """Yields lines on what was not read, what was read in another form, and what was left aside."""
    for label, those, more in (("not read", coverage.unread, coverage.more), ("note", coverage.notes, 0)):
        for at, one in enumerate(those[:MAX_FILES_IN_TEXT]):
            yield f"  {label if at == 0 else '':<9}  {printable_line(one.file)}: {printable_line(one.why)}"
        if left := more + max(0, len(those) - MAX_FILES_IN_TEXT):
            yield f"  {'':<9}  and {left} more (`-o json` lists them)"
    if coverage.aside:
        yield (
            "  no logs    left aside by their names: "
            f"{printable_line(first_items_text(coverage.aside, MAX_FILES_IN_TEXT))}"
        )


def remedy_text(cause: Cause, pages: Mapping[str, CausePage]) -> str:
    """The rule's own remedy, else the one on the cause's page."""
    return cause.remedy or (pages[cause.cause].remedy if cause.cause in pages else "")


def _cause_lines(cause: Cause, pages: Mapping[str, CausePage]) -> Iterator[str]:
    where = ", ".join(
        part
        for part in (f"rank {cause.rank}" if cause.rank is not None else "", visible_text(cause.node or ""))
        if part
    )
    yield f"{cause.cause}{CONFIDENCE_SUFFIXES[cause.confidence]}" + (f" · {where}" if where else "")
    yield f"  {printable_line(cause.says)}"
    label = "proof"
    for hit in cause.evidence[:MAX_CAUSE_EVIDENCE_LINES]:
        yield f"  {label:<9}  {visible_text(hit.line.source)}:{hit.line.number}: {_shortened_line(hit.line.shown)}"
        label = ""
    if page := pages.get(cause.cause):
        yield f"  why        {page.why}"
        yield f"  confirm    {page.confirm}"
    yield f"  fix        {visible_text(remedy_text(cause, pages))}"


def _consequence_lines(cause: Cause) -> Iterator[str]:
    where = f"{visible_text(cause.evidence[0].line.source)}:{cause.evidence[0].line.number}: " if cause.evidence else ""
    yield f"  follows    {cause.cause}: {where}{_shortened_line(cause.says)}"


def _shortened_line(text: str) -> str:
    line = printable_line(text)
    return f"{line[:MAX_EVIDENCE_LINE_CHARACTERS]}…" if len(line) > MAX_EVIDENCE_LINE_CHARACTERS else line
