"""Holds rules, findings and reports of lint, and prints findings as text and in the forms that CI systems read.

The pages are the catalogue of rules: id, severity, sentence and text of a rule are only there.

A page has a section `## RULE-ID` for each rule. Its first line is `*error*. One sentence.` or `*warning*. One
sentence.`; `*error, always*.` marks an error with which a file cannot be used; it cannot be silenced.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import runbook
from runbook.files.problems import render
from runbook.files.suggestions import did_you_mean
from runbook.model.errors import Problem, Span
from runbook.model.units import count_text

_HEADING = re.compile(r"^## (?=\S)", re.MULTILINE)
_SEVERITY_LINE = re.compile(r"\*(?P<severity>error|warning)(?P<always>, always)?\*\. (?P<summary>\S.*)")


@dataclass(frozen=True, slots=True)
class LintRule:
    """A rule as its page has it. `text` is its whole section in Markdown, without the heading. With `always` nothing
    can silence the rule."""

    id: str
    severity: str  # error | warning
    always: bool
    summary: str
    text: str


@cache
def lint_rules() -> Mapping[str, LintRule]:
    """Every rule by its id, family by family."""
    found: dict[str, LintRule] = {}
    for name, page in rule_pages().items():
        for rule in parse_rule_page(page):
            if rule.id in found:
                raise ValueError(f"{name}.md: `{rule.id}` has a section already")
            found[rule.id] = rule
    return dict(sorted(found.items(), key=lambda item: item[0].partition(".")[0]))


def silencing_refusal(id: str, *, guess: bool = True) -> tuple[str, str, str] | None:
    """Why the rule of this id cannot be silenced: the last part of the problem's id, a sentence, and the help. None if
    it can be. With `guess`, the help for an unknown id suggests the nearest rule."""
    if id not in lint_rules():
        help = (guess and did_you_mean(id, lint_rules())) or "`runbook explain` lists all rules"
        return "unknown-rule", f"there is no rule `{id}`", help
    if lint_rules()[id].always:
        return "refused", f"`{id}` cannot be silenced", "mend what it says"
    return None


def rule_pages() -> dict[str, str]:
    """The pages by name: `pages/` has those for loading, settings and silences, `rules/` has one for each module."""
    room = resources.files("runbook.lint")
    pages = [page for folder in ("pages", "rules") for page in room.joinpath(folder).iterdir()]
    texts = {page.name: page for page in pages if page.name.endswith(".md")}
    if len(texts) != sum(page.name.endswith(".md") for page in pages):
        raise ValueError("two pages of lint have one name")
    return {name.removesuffix(".md"): texts[name].read_text(encoding="utf-8") for name in sorted(texts)}


def parse_rule_page(text: str) -> Iterator[LintRule]:
    """The rules of one page. Raises ValueError where a section does not begin as it should."""
    for section in _HEADING.split(text)[1:]:
        id, _, body = section.partition("\n")
        first = _SEVERITY_LINE.match(body.strip())
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


def finding_from_problem(problem: Problem, file: str) -> LintFinding:
    """The finding of a problem; `file` is the file of a problem without a place. Raises LookupError if no page has a
    section for the problem's id."""
    if problem.id not in lint_rules():
        raise LookupError(f"the rule {problem.id} has no section on a page of lint")
    return LintFinding(lint_rules()[problem.id], problem.span or Span(file, 1, 1), problem.message, problem.help)


def sorted_findings(findings: Iterable[LintFinding]) -> tuple[LintFinding, ...]:
    """Each finding once, by place, then by rule."""

    def place(finding: LintFinding) -> tuple[object, ...]:
        span = finding.span
        return (span.file, span.line, span.column, finding.rule.id, finding.message)

    once = {(finding.rule.id, finding.span, finding.message): finding for finding in findings}
    return tuple(sorted(once.values(), key=place))


def report_text(report: Report) -> str:
    lines = {file: report.lines_of(file) for file in {finding.span.file for finding in report.findings}}
    blocks = [render(finding.problem, lines[finding.span.file], finding.rule.severity) for finding in report.findings]
    return "\n\n".join([*blocks, report_summary(report)]) + "\n"


def report_summary(report: Report) -> str:
    """`2 errors, 1 warning in 3 of 5 files`, or `clean: 5 files`."""
    files = count_text(len(report.files), "file")
    if not report.findings:
        return f"clean: {files}"
    counts = [count_text(number, word) for word in ("error", "warning") if (number := report.count(word))]
    touched = len({finding.span.file for finding in report.findings})
    return f"{', '.join(counts)} in {touched} of {files}" if len(report.files) > 1 else ", ".join(counts)


# Findings as one JSON document: `{"version": 1, "findings": […]}`.


def report_json(report: Report) -> str:
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


def github_commands(report: Report) -> str:
    """One `::error …` or `::warning …` a finding; the summary is plain text for the log."""
    return "".join(f"{_github_command(finding)}\n" for finding in report.findings) + report_summary(report) + "\n"


def _github_command(finding: LintFinding) -> str:
    span = finding.span
    properties = {
        "file": span.file,
        "line": span.line,
        "endLine": span.line,
        "col": span.column,
        "endColumn": span.column + span.length,
        "title": finding.rule.id,
    }
    shown = ",".join(f"{name}={_escaped_property(str(value))}" for name, value in properties.items())
    return f"::{finding.rule.severity} {shown}::{_escaped_data(_message_with_help(finding))}"


def _message_with_help(finding: LintFinding) -> str:
    return finding.message if finding.help is None else f"{finding.message}\n{finding.help}"


def _escaped_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped_data(text).replace(":", "%3A").replace(",", "%2C")


# Findings as SARIF 2.1.0, which code hosts and editors read. Files below this folder have URIs relative to it.

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_document(report: Report) -> str:
    """The report as a document of SARIF."""
    used = [rule for rule in lint_rules().values() if any(finding.rule is rule for finding in report.findings)]
    index = {rule.id: number for number, rule in enumerate(used)}
    prints = _Fingerprints(report)
    driver = {"name": "runbook", "semanticVersion": runbook.__version__, "rules": list(map(_sarif_rule, used))}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, index[finding.rule.id], prints(finding)) for finding in report.findings],
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _sarif_rule(rule: LintRule) -> dict[str, Any]:
    page = rule.text.partition("\n")[2].strip()
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.summary},
        "fullDescription": {"text": rule.summary},
        "help": {"text": f"{rule.summary}\n\n{page}".strip(), "markdown": rule.text},
        "defaultConfiguration": {"level": rule.severity},
    }


def _sarif_result(finding: LintFinding, rule_index: int, fingerprint: str) -> dict[str, Any]:
    span = finding.span
    end = {"endLine": span.line, "endColumn": span.column + span.length}
    region = {"startLine": span.line, "startColumn": span.column, **end}
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": rule_index,
        "level": finding.rule.severity,
        "message": {"text": _message_with_help(finding)},
        "locations": [{"physicalLocation": {"artifactLocation": artifact_location(span.file), "region": region}}],
        "partialFingerprints": {"runbookLine/v1": fingerprint},
    }


def artifact_location(file: str) -> dict[str, str]:
    """A file's URI: relative to the source root if the file is below the current folder, otherwise absolute."""
    whole = Path(os.path.normpath(Path(file).absolute()))
    try:
        relative = whole.relative_to(Path.cwd()).as_posix()
    except (ValueError, FileNotFoundError):  # the file is elsewhere, or the current folder is gone
        return {"uri": whole.as_uri()}
    return {"uri": quote(os.fsencode(relative), safe="/-._~"), "uriBaseId": "%SRCROOT%"}


class _Fingerprints:
    """Makes a finding's fingerprint, which stays the same while other lines come and go: of the rule, the file and the
    text of the line, with a number that counts equal ones."""

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


REPORT_FORMATS: dict[str, Callable[[Report], str]] = {
    "text": report_text,
    "json": report_json,
    "sarif": sarif_document,
    "github": github_commands,
}
"""The functions that print a report, by the name that `-o` takes."""
