"""Where the shipped schemas, playbooks and inventories lie, and how a name on the command line finds one.

In a wheel they travel inside the package (`runbook/shipped/…`); in a checkout they lie at the top of the repository.
"""

from __future__ import annotations

import os
from pathlib import Path

from runbook.load.didyoumean import nearest
from runbook.model.errors import FilesWrong, Problem

_PACKAGE = Path(__file__).resolve().parent.parent
_SUFFIXES = (".yml", ".yaml")


def shipped(kind: str, name: str = "") -> Path:
    """The path of a shipped file; `kind` is `schemas`, `playbooks` or `inventories`. The file need not exist."""
    inside = _PACKAGE / "shipped" / kind
    return (inside if inside.is_dir() else _PACKAGE.parent / kind) / name


def shipped_names(kind: str) -> list[str]:
    """The names of what is shipped, without `.yml`."""
    folder = shipped(kind)
    return sorted(file.stem for file in folder.iterdir() if file.suffix in _SUFFIXES) if folder.is_dir() else []


def find_playbook(name: str) -> Path:
    """A playbook as typed: a path, a path without its suffix, a file in `playbooks/`, or a shipped one's name."""
    return _find(name, "playbooks", "playbook")


def find_inventory(name: str) -> Path:
    """An inventory as typed, by the same rules as a playbook."""
    return _find(name, "inventories", "inventory")


def _find(name: str, kind: str, word: str) -> Path:
    if not name or "\0" in name:
        raise FilesWrong([Problem(f"{word}.not-found", f"the name of the {word} is empty or not a file name")])
    tried: list[Path] = []
    for folder in (Path(), Path(kind), shipped(kind)):
        for suffix in ("", *_SUFFIXES):
            path = folder / f"{name}{suffix}"
            if os.path.isfile(path):  # noqa: PTH113  (Path.is_file raises where a name is too long)
                return path
            tried.append(path)
    if os.path.exists(name):  # noqa: PTH110
        return Path(name)  # a folder, or a pipe such as /dev/stdin: for the reader of files to judge
    looked = ", ".join(str(path)[:200] for path in dict.fromkeys(tried))
    names = shipped_names(kind)
    near = nearest(Path(name).stem, names)
    help = f"did you mean `{near}`?" if near else (f"shipped: {', '.join(names)}" if names else None)
    raise FilesWrong([Problem(f"{word}.not-found", f"there is no {word} `{name}`; tried {looked}", None, help)])
