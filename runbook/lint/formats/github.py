"""Findings as workflow commands of GitHub Actions, which shows them beside the lines of a pull request."""

from __future__ import annotations

from runbook.lint.finding import LintFinding, Report
from runbook.lint.formats.text import summary


def github(report: Report) -> str:
    """One `::error …` or `::warning …` a finding; the summary is plain text for the log."""
    return "".join(f"{_command(finding)}\n" for finding in report.findings) + summary(report) + "\n"


def _command(finding: LintFinding) -> str:
    span = finding.span
    properties = {
        "file": span.file,
        "line": span.line,
        "endLine": span.line,
        "col": span.column,
        "endColumn": span.column + span.length,
        "title": finding.rule.id,
    }
    told = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    message = finding.message if finding.help is None else f"{finding.message}\n{finding.help}"
    return f"::{finding.rule.severity} {told}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
