"""What a member of an archive may be called: whoever unpacks one must get files below one folder, and nothing else.

Names of nodes' answers and of logs come from elsewhere. Every one passes here before it is written, whatever was checked
before.
"""

from __future__ import annotations

import re

LONGEST_NAME = 200
LONGEST_PATH = 700
DEEPEST = 12
_PART = re.compile(r"(?!\.|-)[\w.+@=,~()\[\]{}# -]+(?<![. ])")
"""No separator, no drive or stream of Windows, no control character, nothing hidden and nothing that reads as an option."""
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def refused(path: str) -> str | None:
    """Why no member may have this path; None for one that is relative, stays below its folder and is told on any system."""
    parts = path.split("/")
    if (
        len(path) > LONGEST_PATH
        or len(parts) > DEEPEST
        or any(len(part.encode("utf-8", "replace")) > LONGEST_NAME for part in parts)
    ):
        return "its name is too long"
    if not all(_PART.fullmatch(part) and part.isprintable() for part in parts):
        return "its name is none that a file of an archive may have"
    if any(_DEVICES.fullmatch(part) for part in parts):
        return "its name is that of a device on Windows"
    return None


class Taken:
    """Which paths are in use, where upper and lower case may be one and a file cannot be a folder as well."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def take(self, path: str) -> str:
        """The path, or with a number behind the part of it where another file would be written over."""
        free = ""
        *folders, _ = parts = path.split("/")
        for depth, part in enumerate(parts):
            wanted, number = f"{free}/{part}".removeprefix("/"), 2
            free = wanted
            while free.casefold() in self._files or (depth == len(folders) and free.casefold() in self._folders):
                free, number = f"{wanted}-{number}", number + 1
            (self._folders if depth < len(folders) else self._files).add(free.casefold())
        return free
