"""Long things in few words, for a sentence; the evidence has them whole."""

from __future__ import annotations

MOST = 60
"""Characters of somebody's command line that a sentence bears."""


def in_brief(text: str, most: int = MOST) -> str:
    """On one line, cut at a blank where one is near the end."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    head = line[: most - 1]
    return (head.rpartition(" ")[0] if " " in head[most // 2 :] else head) + "…"
