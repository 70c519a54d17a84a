"""What a mistake makes others say: findings that would go away with it, and only hide it until then."""

from __future__ import annotations

from collections.abc import Collection

from runbook.lint.finding import LintFinding
from runbook.model.errors import Problem, Span


def without_echoes(findings: list[LintFinding], of_loading: Collection[Problem]) -> list[LintFinding]:
    """Rules' findings without those about a value that is known to be wrong.

    That is one whose YAML was not what its author meant, one that loading refuses, and for what other YAML readers
    would make of it any error. A secret is one all the same, and only what is told can be starred.
    """
    misread = [problem.span for problem in of_loading if problem.span and problem.id.startswith("yaml.")]
    refused = {_start(problem.span) for problem in of_loading if problem.span}
    errors = refused | {_start(finding.span) for finding in findings if finding.rule.severity == "error"}
    lines: dict[int, list[Span]] = {}
    for span in misread:
        lines.setdefault(span.line, []).append(span)
    return [
        finding
        for finding in findings
        if finding.rule.id.startswith("secret.")
        or (
            _start(finding.span) not in (errors if finding.rule.id.startswith("yaml.") else refused)
            and not any(_overlap(finding.span, span) for span in lines.get(finding.span.line, ()))
        )
    ]


def _start(span: Span) -> tuple[int, int]:
    return (span.line, span.column)


def _overlap(one: Span, other: Span) -> bool:
    return one.column < other.column + other.length and other.column < one.column + one.length
