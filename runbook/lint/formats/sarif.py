"""Findings as SARIF 2.1.0, which code hosts and editors read. Files below this folder have URIs relative to it."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import runbook
from runbook.lint.catalogue import LintRule, rules
from runbook.lint.finding import LintFinding, Report

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Report) -> str:
    used = [rule for rule in rules().values() if any(finding.rule is rule for finding in report.findings)]
    index = {rule.id: number for number, rule in enumerate(used)}
    prints = _Fingerprints(report)
    run = {
        "tool": {
            "driver": {
                "name": "runbook",
                "semanticVersion": runbook.__version__,
                "rules": [_descriptor(rule) for rule in used],
            }
        },
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
    region = {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.line,
        "endColumn": span.column + span.length,
    }
    message = finding.message if finding.help is None else f"{finding.message}\n{finding.help}"
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": rule_index,
        "level": finding.rule.severity,
        "message": {"text": message},
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
        digest = hashlib.sha256("\0".join((finding.rule.id, span.file, text)).encode("utf-8", "replace")).hexdigest()[
            :16
        ]
        self._seen[digest] += 1
        return f"{digest}:{self._seen[digest]}"
