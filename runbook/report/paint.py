"""Colours of the page: the sixteen that every terminal has, and nothing that matters said by colour alone."""

from __future__ import annotations

from collections.abc import Mapping

from runbook.model.visible import visible
from runbook.report.page import Line, Style
from runbook.report.text import ascii_only

SGR: Mapping[Style, str] = {
    "": "",
    "ok": "32",
    "fail": "1;31",
    "unknown": "1;33",
    "skip": "36",
    "warn": "33",
    "dim": "2",
    "strong": "1",
    "command": "1;36",
}


def paint(line: Line, *, colour: bool, ascii: bool) -> str:
    """The line as a stream gets it, without the newline and without blanks at its end: the only escapes in it are ours."""
    spans = [(ascii_only(visible(text)) if ascii else visible(text), style) for text, style in line]
    while spans and not spans[-1][0].rstrip():
        spans.pop()
    if spans:
        spans[-1] = (spans[-1][0].rstrip(), spans[-1][1])
    if not colour:
        return "".join(text for text, _ in spans)
    return "".join(f"\x1b[{SGR[style]}m{text}\x1b[0m" if SGR[style] and text.strip() else text for text, style in spans)
