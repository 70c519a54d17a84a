"""One tool's output, read as `diagnose` reads it."""

from __future__ import annotations

from runbook.diagnose.tool_outputs import read_paste
from runbook.parsers.tool_reading import Reading


def read_tool(text: bytes | str, name: str = "") -> Reading | None:
    """What a text says that is one tool's output, with or without the command before it; None when it is none."""
    found = read_paste(text if isinstance(text, str) else text.decode("utf-8", "replace"), name).found
    return found[0].reading if found else None
