"""Findings as text, and in the forms that CI systems read. Pure."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import runbook
from runbook.files.problems import render
from runbook.lint.findings import LintFinding, LintRule, Report, rules
from runbook.model.units import counted


def text(report: Report) -> str:
    lines = {file: report.lines_of(file) for file in {finding.span.file for finding in report.findings}}
    blocks = [render(finding.problem, lines[finding.span.file], finding.rule.severity) for finding in report.findings]
    return "\n\n".join([*blocks, summary(report)]) + "\n"


def summary(report: Report) -> str:
    """`2 errors, 1 warning in 3 of 5 files`, or `clean: 5 files`."""
    files = counted(len(report.files), "file")
    if not report.findings:
        return f"clean: {files}"
    counts = [counted(number, word) for word in ("error", "warning") if (number := report.count(word))]
    touched = len({finding.span.file for finding in report.findings})
    return f"{', '.join(counts)} in {touched} of {files}" if len(report.files) > 1 else ", ".join(counts)


# Findings as one JSON document: `{"version": 1, "findings": […]}`.


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


# Findings as workflow commands of GitHub Actions, which shows them beside the lines of a pull request.


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
    shown = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    return f"::{finding.rule.severity} {shown}::{_data(_whole(finding))}"


def _whole(finding: LintFinding) -> str:
    return finding.message if finding.help is None else f"{finding.message}\n{finding.help}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# Findings as SARIF 2.1.0, which code hosts and editors read. Files below this folder have URIs relative to it.

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Report) -> str:
    used = [rule for rule in rules().values() if any(finding.rule is rule for finding in report.findings)]
    index = {rule.id: number for number, rule in enumerate(used)}
    prints = _Fingerprints(report)
    driver = {"name": "runbook", "semanticVersion": runbook.__version__, "rules": list(map(_descriptor, used))}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, index[finding.rule.id], prints(finding)) for finding in report.findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _descriptor(rule: LintRule) -> dict[str, Any]:
    page = rule.text.partition("\n")[2].strip()
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}\n\n{page}".strip(), "markdown": rule.text},
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: LintFinding, rule_index: int, fingerprint: str) -> dict[str, Any]:
    span = finding.span
    end = {"endLine": span.line, "endColumn": span.column + span.length}
    region = {"startLine": span.line, "startColumn": span.column, **end}
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": rule_index,
        "level": finding.rule.severity,
        "message": {"text": _whole(finding)},
        "locations": [{"physicalLocation": {"artifactLocation": artifact(span.file), "region": region}}],
        "partialFingerprints": {"runbookLine/v1": fingerprint},
    }


def artifact(file: str) -> dict[str, str]:
    """A file's URI: relative to the source root below this folder, else as a whole."""
    whole = Path(os.path.normpath(Path(file).absolute()))
    try:
        relative = whole.relative_to(Path.cwd()).as_posix()
    except (ValueError, FileNotFoundError):  # elsewhere; or this folder is gone, and everything is
        return {"uri": whole.as_uri()}
    return {"uri": quote(os.fsencode(relative), safe="/-._~"), "uriBaseId": "%SRCROOT%"}


class _Fingerprints:
    """The same finding keeps its fingerprint while other lines come and go: it is made of the rule and the line's
    text, and of a number where a file has several such."""

    def __init__(self, report: Report) -> None:
        self._lines = {file: report.lines_of(file) for file in {finding.span.file for finding in report.findings}}
        self._seen: Counter[str] = Counter()

    def __call__(self, finding: LintFinding) -> str:
        span = finding.span
        lines = self._lines[span.file]
        text = lines[span.line - 1].strip() if span.line <= len(lines) else ""
        whole = "\0".join((finding.rule.id, span.file, text)).encode("utf-8", "replace")
        digest = hashlib.sha256(whole).hexdigest()[:16]
        self._seen[digest] += 1
        return f"{digest}:{self._seen[digest]}"


FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json, "sarif": sarif, "github": github}
"""By the name that `-o` takes."""
