"""`runbook lint`: 0 when everything is clean, 1 when there are findings, 2 when there was nothing to look at."""

from __future__ import annotations

import argparse
import io
import sys

from runbook.lint.engine import lint as lint_paths
from runbook.lint.finding import printable
from runbook.lint.formats import FORMATS


def lint(arguments: argparse.Namespace) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name need not be text
    report = lint_paths(arguments.paths)
    for note in report.notes:
        sys.stderr.write(f"note: {printable(note)}\n")
    if sys.stdout is not None:  # closed by the caller, who wants the exit code alone
        sys.stdout.write(FORMATS[arguments.output](report))
    return 1 if report.findings else 0
