"""`diagnose` from a test: the command itself, and the rules on text that stands in the test."""

from __future__ import annotations

import contextlib
import io
import json
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runbook.cli.diagnose import Reader
from runbook.cli.main import main
from runbook.diagnose.all_rules import make_scanner
from runbook.diagnose.judge import Cause
from runbook.diagnose.sources.logfiles import LogFile


@dataclass(frozen=True)
class Told:
    exit_code: int
    causes: list[dict[str, Any]]
    unread: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)

    @property
    def first(self) -> str | None:
        return self.causes[0]["cause"] if self.causes else None


def diagnose(*logs: Path | str) -> Told:
    """What `runbook diagnose -o json` says and how it ends."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["diagnose", "-o", "json", *map(str, logs)])
    document = json.loads(out.getvalue())
    assert set(document) - {"unread", "notes", "aside"} == {"version", "causes"}
    assert document.pop("version") == 1
    return Told(code, **document)


def causes_in(**logs: str | bytes) -> list[Cause]:
    """The causes in logs that are given as text, by their names: what the command tells of such files."""
    reader = Reader(make_scanner())
    for name, text in logs.items():
        data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
        reader.read(LogFile(f"{name}.log", None), iter([data]))
    return reader.causes()


def first_in(text: str | bytes) -> str | None:
    found = causes_in(job=text)
    return found[0].cause if found else None
