"""Findings as text, and as what CI systems read. Pure."""

from __future__ import annotations

from collections.abc import Callable

from runbook.lint.finding import Report
from runbook.lint.formats.github import github
from runbook.lint.formats.json import as_json
from runbook.lint.formats.sarif import sarif
from runbook.lint.formats.text import text

FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json, "sarif": sarif, "github": github}
"""By the name that `-o` takes."""
