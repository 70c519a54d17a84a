"""What would change in a file, as a unified diff; of a file with secrets, only the names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

_NOWHERE = "/dev/null"


def unified(path: Path, before: bytes | None, after: bytes | None, secret: bool) -> Iterator[str]:
    """Lines of a diff, none where nothing changes. `None` is a file that is not there."""
    old, new = _lines(before), _lines(after)
    if secret:
        old, new = _starred(old, new)
    names = (_NOWHERE if before is None else str(path), _NOWHERE if after is None else str(path))
    yield from difflib.unified_diff(old, new, *names)


def _lines(data: bytes | None) -> list[str]:
    """Lines that end with \\n, whatever they end with in the file."""
    lines = (data or b"").decode("utf-8-sig", "replace").split("\n")
    return [line.removesuffix("\r") + "\n" for line in (lines if lines[-1] else lines[:-1])]


def _starred(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Values as `***`; a variable that has another one now still differs."""
    before = [_star(line) for line in old]
    after = [_star(line) for line in new]
    changed = {star for star, line in zip(after, new, strict=True) if star in before and line not in old}
    return before, [star.replace("\n", " (another value)\n") if star in changed else star for star in after]


def _star(line: str) -> str:
    """A line of a file with secrets: everything behind the name may be one, and so may a line that sets nothing."""
    name, sets, _ = line.partition("=")
    return f"{name}=***\n" if sets else line if line == "@echo off\n" else "***\n"
