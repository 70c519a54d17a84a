"""`runbook lint`: 0 when everything is clean, 1 when there are findings, 2 when there was nothing to look at."""

from __future__ import annotations

import argparse

from runbook.lint.findings import REPORT_FORMATS
from runbook.lint.run import lint as lint_paths
from runbook.report.standard_streams import stderr, stdout


def lint(arguments: argparse.Namespace) -> int:
    report = lint_paths(arguments.paths)
    for note in report.notes:
        stderr.line(f"note: {note}")
    text = REPORT_FORMATS[arguments.output](report)
    if arguments.output in ("json", "sarif"):
        stdout.document(text)
    else:
        stdout.tell(text)
    return 1 if report.findings else 0
