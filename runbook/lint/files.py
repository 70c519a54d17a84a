"""From the paths on the command line to the files that are looked at: each once, in order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.model.errors import FilesWrong, Problem

SUFFIXES = (".yml", ".yaml")


@dataclass(frozen=True, slots=True)
class Found:
    """`path` as it is shown; `named` if it stands on the command line itself and not only its folder does."""

    path: str
    named: bool


def find_files(paths: Sequence[str]) -> list[Found]:
    """Files as they are, and from folders every .yml and .yaml, hidden ones left out.

    Raises FilesWrong for a path that does not exist or a folder that cannot be read, and when there is nothing to
    look at: an empty lint would be an empty success.
    """
    missing = [path for path in paths if "\0" in path or not os.path.lexists(path)]
    if missing:
        raise FilesWrong([Problem("arguments.missing-path", f"there is no file or folder {path}") for path in missing])
    files: dict[str, Found] = {}
    folders: set[str] = set()
    for path in paths:
        named = not Path(path).is_dir()
        for file in [Path(path)] if named else _walk(Path(path), folders):
            files.setdefault(os.path.realpath(file), Found(str(file), named))
    if not files:
        message = f"there is no .yml or .yaml in {', '.join(paths)}"
        raise FilesWrong([Problem("arguments.nothing-to-lint", message, None, "name the files, or their folder")])
    return list(files.values())


def _walk(folder: Path, seen: set[str]) -> Iterator[Path]:
    """Files before folders, both sorted. Each real folder is entered once, whatever links lead to it."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        message = f"the folder {folder} cannot be read: {error.strerror}"
        raise FilesWrong([Problem("arguments.unreadable-folder", message)]) from None
    for path in inside:
        # A link that leads nowhere is a mistake to tell; a pipe or a device would be waited for.
        if path.suffix in SUFFIXES and (path.is_file() or (path.is_symlink() and not path.exists())):
            yield path
    for path in inside:
        if path.is_dir():
            yield from _walk(path, seen)
