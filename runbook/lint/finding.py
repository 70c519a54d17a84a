"""What lint has to say about one place of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from runbook.lint.catalogue import LintRule, rules
from runbook.model.errors import Problem, Span


@dataclass(frozen=True, slots=True)
class LintFinding:
    """A problem as its rule judges it. It always has a place: of a file that cannot be read, the first character."""

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
        raise LookupError(f"the rule {problem.id} has no section in lint/pages")
    return LintFinding(rules()[problem.id], problem.span or Span(file, 1, 1), problem.message, problem.help)


def in_order(findings: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    """Each finding once, by place, then by rule."""

    def place(finding: LintFinding) -> tuple[object, ...]:
        span = finding.span
        return (span.file, span.line, span.column, finding.rule.id, finding.message)

    once = {(finding.rule.id, finding.span, finding.message): finding for finding in findings}
    return tuple(sorted(once.values(), key=place))
