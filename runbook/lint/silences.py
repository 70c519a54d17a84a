"""Reads and applies silences, `# noqa: RULE, RULE`: at the end of a line for that line, on a line of its own for the
next line with content."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from runbook.files.yaml_document import Document, iterate_scalars
from runbook.lint.findings import LintFinding, lint_rules, silencing_refusal
from runbook.model.errors import Problem, Span

_MAX_SUGGESTIONS = 100  # unknown ids for which the nearest rule is looked up, at half a millisecond each
_BLOCK_SCALAR_START = re.compile(r"(?:[&!]\S*\s+)*[|>]")  # the sign that begins a block of text, behind anchor and tag
_NOQA = re.compile(r"#\s*noqa\b(?P<colon>\s*:)?(?P<said>[^#]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SilencedRule:
    """A rule that is silenced on one line; `span` is where the rule's id stands in the comment."""

    rule: str
    line: int
    span: Span


def silences_in(document: Document) -> tuple[list[SilencedRule], list[Problem]]:
    """The silences in a document of rules that can be silenced, and the problems with all other silences."""
    if document.data is None or "noqa" not in document.text.lower():
        return [], []
    silences: list[SilencedRule] = []
    problems: list[Problem] = []
    comments = _Comments(document)
    unknown = 0
    for number, line, below in _lines_with_comments(document.lines):
        said = len(line) - len(line.lstrip())
        for noqa in _NOQA.finditer(line):
            if not comments.begins(number, noqa.start() + 1):
                continue
            about = number if said < noqa.start() else below
            ids = list(_silenced_ids(noqa))
            if not ids:
                span = Span(document.path, number, noqa.start() + 1, len(noqa.group().rstrip()))
                message = "this silences nothing: it does not say which rule"
                problems.append(Problem("silence.bare", message, span, "write `# noqa: RULE`, with the rule's id"))
            for id, start in ids:
                span = Span(document.path, number, start + 1, len(id))
                problem = _silence_problem(id, span, guess=unknown < _MAX_SUGGESTIONS)
                unknown += id not in lint_rules()
                if problem is None:
                    silences.append(SilencedRule(id, about, span))
                else:
                    problems.append(problem)
    return silences, problems


def apply_silences(
    silences: Iterable[SilencedRule], findings: Collection[LintFinding]
) -> tuple[list[LintFinding], list[SilencedRule]]:
    """The findings that are left, and the silences that silenced no finding."""
    silenced = {(silence.rule, silence.line) for silence in silences}
    left: list[LintFinding] = []
    used: set[tuple[str, int]] = set()
    for finding in findings:
        which = (finding.rule.id, finding.span.line)
        if which in silenced and not finding.rule.always:
            used.add(which)
        else:
            left.append(finding)
    return left, [silence for silence in silences if (silence.rule, silence.line) not in used]


def unused_silence(silence: SilencedRule) -> Problem:
    message = f"`{silence.rule}` finds nothing on line {silence.line}"
    return Problem("silence.unused", message, silence.span, "remove it, or it will hide the next mistake")


def _silenced_ids(noqa: re.Match[str]) -> Iterator[tuple[str, int]]:
    """The rule ids of a silence with their columns from 0: the first word, and further words that follow a comma or are
    ids of rules. The text after them is the reason, for people."""
    if noqa["colon"] is None:
        return
    joined = True
    for word in re.finditer(r",|[^\s,]+", noqa["said"]):
        if word.group() == ",":
            joined = True
        elif joined or word.group() in lint_rules():
            yield word.group(), noqa.start("said") + word.start()
            joined = False
        else:
            return


def _silence_problem(id: str, span: Span, *, guess: bool) -> Problem | None:
    refused = silencing_refusal(id, guess=guess)
    return Problem(f"silence.{refused[0]}", refused[1], span, refused[2]) if refused else None


def _lines_with_comments(lines: list[str]) -> Iterator[tuple[int, str, int]]:
    """The lines in which a silence may stand: number, line, and the number of the next line with content.

    Empty lines and comments are no content; if no content follows, the last number is the line's own.
    """
    below: int | None = None
    found: list[tuple[int, str, int]] = []
    for number in range(len(lines), 0, -1):
        line = lines[number - 1]
        if "#" in line:
            found.append((number, line, below or number))
        text = line.strip()
        if text and not text.startswith("#"):
            below = number
    return reversed(found)


class _Comments:
    """Distinguishes a `#` that begins a comment from one inside a text."""

    def __init__(self, document: Document) -> None:
        self._lines = document.lines
        places = [document.extent(*keys) for keys, _ in iterate_scalars(document.data)]
        places += [document.key_extent(*keys) for keys in document.key_spans]
        self._places = sorted(place for place in places if place is not None)

    def begins(self, line: int, column: int) -> bool:
        """Whether the `#` there (both from 1) begins a comment."""
        if column > 1 and not self._lines[line - 1][column - 2].isspace():
            return False
        at = bisect_right(self._places, ((line, column), (1 << 60, 0)))
        if at == 0:
            return True
        start, end = self._places[at - 1]
        if not start <= (line, column) < end:
            return True
        # `key: |  # comment`: the text of a block begins on the next line.
        return start[0] == line and _BLOCK_SCALAR_START.match(self._lines[line - 1], start[1] - 1) is not None
