"""Rules, findings and reports.

The pages are the catalogue of rules: id, severity, sentence and text of a rule are only there.

A page has a section `## RULE-ID` for each rule. Its first line is `*error*. One sentence.` or `*warning*. One
sentence.`; `*error, always*.` marks an error with which a file cannot be used; it cannot be silenced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from runbook.model.errors import Problem, Span

_HEADING = re.compile(r"^## (?=\S)", re.MULTILINE)
_FIRST_LINE = re.compile(r"\*(?P<severity>error|warning)(?P<always>, always)?\*\. (?P<summary>\S.*)")


@dataclass(frozen=True, slots=True)
class LintRule:
    """`text` is the whole section in Markdown, without its heading. With `always` nothing can silence it."""

    id: str
    severity: str  # error | warning
    always: bool
    summary: str
    text: str


@cache
def rules() -> Mapping[str, LintRule]:
    """By id, family by family."""
    found: dict[str, LintRule] = {}
    for name, page in rule_pages().items():
        for rule in read_page(page):
            if rule.id in found:
                raise ValueError(f"{name}.md: `{rule.id}` has a section already")
            found[rule.id] = rule
    return dict(sorted(found.items(), key=lambda item: item[0].partition(".")[0]))


def rule_pages() -> dict[str, str]:
    """The pages by name: `pages/` has those of loading, settings and silences, `rules/` one for each module."""
    room = resources.files("runbook.lint")
    pages = [page for folder in ("pages", "rules") for page in room.joinpath(folder).iterdir()]
    texts = {page.name: page for page in pages if page.name.endswith(".md")}
    if len(texts) != sum(page.name.endswith(".md") for page in pages):
        raise ValueError("two pages of lint have one name")
    return {name.removesuffix(".md"): texts[name].read_text(encoding="utf-8") for name in sorted(texts)}


def read_page(text: str) -> Iterator[LintRule]:
    """The rules of one page. Raises ValueError where a section does not begin as it should."""
    for section in _HEADING.split(text)[1:]:
        id, _, body = section.partition("\n")
        first = _FIRST_LINE.match(body.strip())
        if first is None:
            raise ValueError(f"the section of `{id}` does not begin with `*error*. …` or `*warning*. …`")
        yield LintRule(id.strip(), first["severity"], first["always"] is not None, first["summary"], body.strip())


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A problem with its rule's severity. It always has a place: in a file that cannot be read, the first character."""

    rule: LintRule
    span: Span
    message: str
    help: str | None

    @property
    def problem(self) -> Problem:
        return Problem(self.rule.id, self.message, self.span, self.help)


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, by file, line and column. `files` are those that were looked at; `notes` say what was not."""

    findings: tuple[LintFinding, ...]
    files: tuple[str, ...]
    notes: tuple[str, ...]
    lines_of: Callable[[str], Sequence[str]]

    def count(self, severity: str) -> int:
        return sum(finding.rule.severity == severity for finding in self.findings)


def finding_of(problem: Problem, file: str) -> LintFinding:
    """`file` is where a problem without a place belongs."""
    if problem.id not in rules():
        raise LookupError(f"the rule {problem.id} has no section on a page of lint")
    return LintFinding(rules()[problem.id], problem.span or Span(file, 1, 1), problem.message, problem.help)


def in_order(findings: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    """Each finding once, by place, then by rule."""

    def place(finding: LintFinding) -> tuple[object, ...]:
        span = finding.span
        return (span.file, span.line, span.column, finding.rule.id, finding.message)

    once = {(finding.rule.id, finding.span, finding.message): finding for finding in findings}
    return tuple(sorted(once.values(), key=place))
