"""Findings as a good compiler would print them, and one line that sums them up."""

from __future__ import annotations

from runbook.lint.finding import Report
from runbook.load.explain import render


def text(report: Report) -> str:
    lines = {file: report.lines_of(file) for file in {finding.span.file for finding in report.findings}}
    blocks = [render(finding.problem, lines[finding.span.file], finding.rule.severity) for finding in report.findings]
    return "\n\n".join([*blocks, summary(report)]) + "\n"


def summary(report: Report) -> str:
    """`2 errors, 1 warning in 3 of 5 files`, or `clean: 5 files`."""
    files = _count(len(report.files), "file")
    if not report.findings:
        return f"clean: {files}"
    counts = [_count(number, word) for word in ("error", "warning") if (number := report.count(word))]
    touched = len({finding.span.file for finding in report.findings})
    return f"{', '.join(counts)} in {touched} of {files}" if len(report.files) > 1 else ", ".join(counts)


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
