"""Findings as one JSON document: `{"version": 1, "findings": […]}`."""

from __future__ import annotations

import json

from runbook.lint.finding import Report


def as_json(report: Report) -> str:
    findings = [
        {
            "rule": finding.rule.id,
            "severity": finding.rule.severity,
            "file": finding.span.file,
            "line": finding.span.line,
            "column": finding.span.column,
            "message": finding.message,
            "help": finding.help or "",
        }
        for finding in report.findings
    ]
    return json.dumps({"version": 1, "findings": findings}, indent=2) + "\n"
