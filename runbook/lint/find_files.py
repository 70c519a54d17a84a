"""Finds the files to lint below the named paths, each file once, and marks links that lead out of these paths."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from runbook.files.shipped_files import MAX_COMPARED_FILES, YAML_SUFFIXES
from runbook.files.suggestions import nearest_word
from runbook.model.errors import FilesWrong, Problem
from runbook.model.safe_files import is_folder, path_exists
from runbook.model.safe_text import visible_text


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to lint. `path` is as shown to the user; `named` says that the command line has the file itself, and not
    only its folder. `leads_to` is the target of a link that was found in a folder and leads out of all named paths: no
    line of the target may be shown, since a cloned tree can hold a link to any file of the user."""

    path: str
    named: bool
    leads_to: str | None = None


def find_files(paths: Sequence[str]) -> list[FoundFile]:
    """The named files, and every .yml and .yaml in the named folders but for hidden ones; links that lead out are
    marked.

    Raises FilesWrong for a path that does not exist, for a folder that cannot be read, and when there is no file: an
    empty lint would be an empty success.
    """
    missing = [path for path in paths if "\0" in path or not os.path.lexists(path)]
    if missing:
        raise FilesWrong([_missing_path_problem(path) for path in missing])
    files: dict[str, FoundFile] = {}
    folders: set[str] = set()
    roots = [os.path.realpath(path) for path in paths]
    for path in paths:
        if is_folder(path):
            found = [
                FoundFile(str(file), named=False, leads_to=outside_target(file, roots))
                for file in _walk_folder(Path(path), folders, roots)
            ]
        else:
            found = [FoundFile(str(Path(path)), named=True)]
        for one in found:
            files.setdefault(os.path.realpath(one.path), one)
    if not files:
        message = f"there is no .yml or .yaml in {', '.join(paths)}"
        raise FilesWrong.of("arguments.nothing-to-lint", message, help="name the files, or their folder")
    return list(files.values())


def real_tree_roots(paths: Sequence[str]) -> list[str]:
    """The real paths of the trees that the paths stand for: a folder itself; for a file, its repository, or else its
    folder."""
    return [os.path.realpath(path) if is_folder(path) else _tree_root_of(Path(path)) for path in paths]


def _tree_root_of(file: Path) -> str:
    folder = os.path.realpath(file.parent)
    return str(repository_root(folder) or folder)


def repository_root(folder: str) -> Path | None:
    """The root of the repository that a folder is in, given by its real path."""
    return next((above for above in (Path(folder), *Path(folder).parents) if path_exists(above / ".git")), None)


def outside_target(path: str | Path, roots: Sequence[str]) -> str | None:
    """The real path of a file that is outside of these real paths; None for a file inside, and for one that is
    missing."""
    real = os.path.realpath(path)
    inside = any(Path(real).is_relative_to(root) for root in roots)
    return None if inside or not path_exists(real) else real


def _walk_folder(folder: Path, seen: set[str], roots: Sequence[str]) -> Iterator[Path]:
    """Yields the files in a folder, then those in its folders, both sorted. Each real folder is entered once, whatever
    links lead to it.

    A link to a folder outside is yielded itself, instead of the files in it.
    """
    real = os.path.realpath(folder)
    if real in seen:
        return
    seen.add(real)
    try:
        inside = {path: _file_mode(path) for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
    except OSError as error:
        message = f"the folder {folder} cannot be read: {error.strerror}"
        raise FilesWrong.of("arguments.unreadable-folder", message) from None
    # A link that leads nowhere is reported as a mistake; reading a pipe or a device could block.
    yield from (
        path for path, mode in inside.items() if path.suffix in YAML_SUFFIXES and (mode is None or S_ISREG(mode))
    )
    for path in (path for path, mode in inside.items() if mode is not None and S_ISDIR(mode)):
        if outside_target(path, roots):
            yield path
        else:
            yield from _walk_folder(path, seen, roots)


def _file_mode(path: Path) -> int | None:
    """The mode of the file that a path leads to; None for a link whose target is missing or may not be looked at.
    Raises OSError if the path's own folder may not be searched."""
    try:
        return path.stat().st_mode
    except OSError:
        if os.path.islink(path):  # noqa: PTH114  Path.is_symlink raises where its folder may not be searched
            return None
        raise


def _missing_path_problem(path: str) -> Problem:
    """The problem of a path that does not exist; its help has the name in that folder that is nearest."""
    there = Path(path.replace("\0", "")).parent
    try:
        beside = [one.name for one in islice(there.iterdir(), MAX_COMPARED_FILES)]
    except OSError:
        beside = []
    near = nearest_word(Path(path).name, beside)
    help = f"did you mean `{visible_text(str(there / near))}`?" if near else None
    return Problem("arguments.missing-path", f"there is no file or folder {path}", None, help)
