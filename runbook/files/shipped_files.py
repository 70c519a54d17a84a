"""Finds files of our own: the shipped schemas, playbooks and inventories, the file that a name on the command line
means, and tables in TOML, which Python reads by itself from 3.11 on.

In a wheel the shipped files are inside the package (`runbook/shipped/…`); in a checkout they are at the top of the
repository.
"""

from __future__ import annotations

import re
import sys
from importlib import resources
from pathlib import Path
from typing import Any

from runbook.files.node_sets import split_names
from runbook.files.suggestions import nearest_word
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Problem
from runbook.model.safe_files import is_file, is_folder, path_exists
from runbook.model.safe_text import visible_text

if sys.version_info >= (3, 11):
    import tomllib as tomllib
else:
    import tomli as tomllib


def load_own_table(package: str, *path: str) -> dict[str, Any]:
    """The table of a TOML file of ours, at `path` inside a package."""
    return tomllib.loads(resources.files(package).joinpath(*path).read_text("utf-8"))


_PACKAGE = Path(__file__).resolve().parent.parent
YAML_SUFFIXES = (".yml", ".yaml")
_HOST_ARGUMENT = re.compile(r"\w(?:[\w.@:-]|\[[0-9,-]+\]){0,99}", re.ASCII)
_MAX_NAME_CHARACTERS = 200  # characters of a name
MAX_COMPARED_FILES = 200  # files of a folder that are compared with a name that is missing in it
_MAX_LISTED_FILES = 6  # files of a folder that a help names


def shipped_path(kind: str, name: str = "") -> Path:
    """The path of a shipped file; `kind` is `schemas`, `playbooks` or `inventories`. The file need not exist."""
    inside = _PACKAGE / "shipped" / kind
    return (inside if inside.is_dir() else _PACKAGE.parent / kind) / name


def shipped_names(kind: str) -> list[str]:
    """The names of the shipped files of a kind, as in `shipped`, without `.yml`."""
    folder = shipped_path(kind)
    return sorted(file.stem for file in folder.iterdir() if file.suffix in YAML_SUFFIXES) if folder.is_dir() else []


def shipped_files() -> dict[str, Path]:
    """Every shipped file by its name, such as `inventory.schema.json` or `two_node.yml`."""
    folders = [shipped_path(kind) for kind in ("schemas", "playbooks", "inventories")]
    return {file.name: file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())}


def find_playbook(name: str) -> Path:
    """A playbook as typed: a path, a path without its suffix, a file in `playbooks/`, or a shipped one's name."""
    return _find_file(name, "playbooks", "playbook")


def find_inventory(name: str) -> Path:
    """An inventory as typed, by the same rules as a playbook."""
    return _find_file(name, "inventories", "inventory")


def _find_file(name: str, kind: str, what: str) -> Path:
    """The path that a name on the command line means. Raises FilesWrong."""
    if not name or "\0" in name:
        raise FilesWrong.of(f"{what}.not-found", f"the name of the {what} is empty or not a file name")
    for folder in (Path(), Path(kind), shipped_path(kind)):
        for suffix in ("",) if name.endswith(YAML_SUFFIXES) else ("", *YAML_SUFFIXES):
            path = folder / f"{name}{suffix}"
            if is_file(path):
                return path
    if is_folder(name):
        there = ", ".join(visible_text(str(file)) for file in _yaml_files_in(Path(name))[:_MAX_LISTED_FILES])
        raise FilesWrong.of(
            "file.directory", f"{name} is a folder", help=f"name one of its files: {there}" if there else None
        )
    if path_exists(name):
        return Path(name)  # a pipe such as /dev/stdin: for the reader of files to judge
    raise FilesWrong([_missing_file_problem(name, kind, what)])


def _missing_file_problem(name: str, kind: str, what: str) -> Problem:
    """The problem of a name that leads to no file: where it was looked for, and the file with the nearest name."""
    typed = Path(name[:_MAX_NAME_CHARACTERS])
    if typed.parent == Path():
        message = f"there is no {what} `{typed}` here, in {kind}/ or among the shipped ones"
    elif not is_folder(typed.parent):
        message = f"there is no {what} `{typed}`: there is no folder {typed.parent}"
    else:
        message = f"there is no {what} `{typed}`"
    names = shipped_names(kind)
    hosts = _host_arguments(name) if kind == "inventories" and not name.endswith(YAML_SUFFIXES) else None
    beside = [path for folder in (typed.parent, Path(kind)) for path in _yaml_files_in(folder)]
    near = nearest_word(typed.name, [path.name for path in beside]) or nearest_word(
        typed.stem, [path.stem for path in beside]
    )
    there = next((path for path in beside if near in (path.name, path.stem)), None)
    if there is not None:
        help = f"did you mean `{visible_text(str(there))}`?"
    elif hosts and re.search(r"[,@\[]", name):
        help = f"an inventory is a file: runbook inventory init {hosts} --out mine.yml"
    elif typed.parent == Path() and (
        shipped_near := _name_beginning_with(typed.stem, names) or nearest_word(typed.stem, names)
    ):
        help = f"did you mean `{shipped_near}`?"
    else:
        of_host = f", or make one of that host: runbook inventory init {hosts} --out mine.yml" if hosts else ""
        help = f"name a file{of_host}" + (f"; shipped: {', '.join(names)}" if names else "")
    return Problem(f"{what}.not-found", message, None, help)


def _host_arguments(name: str) -> str | None:
    """The arguments of `inventory init` for a name that looks like hosts: `a,b,` as Ansible takes them, a login, a
    range or one host. None for any other name."""
    hosts = split_names(name)
    return " ".join(map(shell_word, hosts)) if hosts and all(map(_HOST_ARGUMENT.fullmatch, hosts)) else None


def _name_beginning_with(name: str, names: list[str]) -> str | None:
    return next((one for one in names if one.startswith(name)), None)


def _yaml_files_in(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.suffix in YAML_SUFFIXES)[:MAX_COMPARED_FILES]
    except (OSError, ValueError):
        return []
