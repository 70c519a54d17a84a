"""What a stage's script is called on disk: the stage's name in characters that every file system takes."""

from __future__ import annotations

import re
from collections.abc import Iterable

LAUNCH = "launch"
"""The script that starts a node's job has this name, whatever its stage is called."""

_LONGEST = 60
_WINDOWS_DEVICES = re.compile(r"con|prn|aux|nul|com[0-9]|lpt[0-9]")  # no file may be called so there, `con.bat` neither


def slug(text: str) -> str:
    """A stage's name as a file name."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-").lower()[:_LONGEST].rstrip("-") or "stage"
    return f"stage-{name}" if _WINDOWS_DEVICES.fullmatch(name) else name


def script_names(stages: Iterable[str]) -> dict[str, str]:
    """A file name for each stage, no two alike."""
    names: dict[str, str] = {}
    taken = {LAUNCH}
    for stage in stages:
        plain = name = slug(stage)
        number = 2
        while name in taken:
            name = f"{plain}-{number}"
            number += 1
        taken.add(name)
        names[stage] = name
    return names
