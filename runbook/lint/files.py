"""From paths to files that are read: each is found once, told apart (inventory or playbook) and examined."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

from runbook.files.document import Document, read_document
from runbook.files.file_kinds import INVENTORY, PLAYBOOK, shape_of, wrong_kind
from runbook.files.hints import nearest
from runbook.files.inventory import examine_inventory
from runbook.files.playbook import examine_launch, examine_playbook, has_launch, launch_document
from runbook.files.schema import schema
from runbook.files.shipped import SUFFIXES
from runbook.lint.rule_inputs import InventoryFile, PlaybookFile
from runbook.model.errors import FilesWrong, Problem


@dataclass(frozen=True, slots=True)
class LintFile:
    """`path` as it is shown; `named` if it stands on the command line itself and not only its folder does.

    `leads_to` is where a link leads that was found in a folder and leads out of all that was named: no line of it may
    be shown. A tree that was cloned can hold a link to any file of whoever lints it.
    """

    path: str
    named: bool
    leads_to: str | None = None


def find_files(paths: Sequence[str]) -> list[LintFile]:
    """Files as they are, and from folders every .yml and .yaml, hidden ones left out; links out of them are marked.

    Raises FilesWrong for a path that does not exist or a folder that cannot be read, and when there is nothing to
    look at: an empty lint would be an empty success.
    """
    missing = [path for path in paths if "\0" in path or not os.path.lexists(path)]
    if missing:
        raise FilesWrong([Problem("arguments.missing-path", f"there is no file or folder {path}") for path in missing])
    files: dict[str, LintFile] = {}
    folders: set[str] = set()
    roots = [os.path.realpath(path) for path in paths]
    for path in paths:
        if Path(path).is_dir():
            found = [
                LintFile(str(file), named=False, leads_to=leads_out(file, roots))
                for file in _walk(Path(path), folders, roots)
            ]
        else:
            found = [LintFile(str(Path(path)), named=True)]
        for one in found:
            files.setdefault(os.path.realpath(one.path), one)
    if not files:
        message = f"there is no .yml or .yaml in {', '.join(paths)}"
        raise FilesWrong([Problem("arguments.nothing-to-lint", message, None, "name the files, or their folder")])
    return list(files.values())


def roots_of(paths: Sequence[str]) -> list[str]:
    """The real paths of the trees that were asked for; for a file that was named, of the repository that it is in."""
    return [os.path.realpath(path) if Path(path).is_dir() else _tree_of(Path(path)) for path in paths]


def _tree_of(file: Path) -> str:
    folder = Path(os.path.realpath(file.parent))
    return str(next((above for above in (folder, *folder.parents) if (above / ".git").exists()), folder))


def leads_out(path: str | Path, roots: Sequence[str]) -> str | None:
    """The real path of what stands at none of these real paths, nor inside them; None for what does."""
    real = os.path.realpath(path)
    inside = any(Path(real).is_relative_to(root) for root in roots)
    return None if inside or not Path(real).exists() else real


def _walk(folder: Path, seen: set[str], roots: Sequence[str]) -> Iterator[Path]:
    """Files before folders, both sorted. Each real folder is entered once, whatever links lead to it.

    A link to a folder outside is yielded in the place of what is in it.
    """
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
        if path.is_dir() and leads_out(path, roots):
            yield path
        elif path.is_dir():
            yield from _walk(path, seen, roots)


# Whether a file is an inventory, a playbook, or none of ours: told from its data, else from its text and its folder.

Kind = Literal["inventory", "playbook"]

_MODELINE = re.compile(
    r"^[ \t]*#[ \t]*yaml-language-server:[ \t]*\$schema=\S*(inventory|playbook)\.schema\.json", re.MULTILINE
)
_FOLDERS: Mapping[str, Kind] = {"inventories": "inventory", "playbooks": "playbook"}
_SYNONYMS: Mapping[str, Kind] = {
    "node": "inventory",
    "hosts": "inventory",
    "host": "inventory",
    "stage": "playbook",
    "steps": "playbook",
    "checks": "playbook",
}
"""What people write in the place of `nodes` and `stages`."""


def kind_of(document: Document, *, named: bool) -> Kind | None:
    """`named`: the user gave this very file, so it is meant to be one of ours if anything in it looks so."""
    marked = _MODELINE.search(document.text)
    if marked:
        return "playbook" if marked[1] == "playbook" else "inventory"
    folder = next((_FOLDERS[part] for part in reversed(PurePath(document.path).parts[:-1]) if part in _FOLDERS), None)
    kind = _of_data(document.data, sure=named or folder is not None) if document.data is not None else None
    if document.data is None:
        kind = _of_text(document.text)
    return kind or folder


def _of_data(data: object, *, sure: bool) -> Kind | None:
    if isinstance(data, list):
        return "playbook" if any(_is_stage(item) for item in data) else None
    if not isinstance(data, dict):
        return None
    if not sure and shape_of(data) not in (None, INVENTORY, PLAYBOOK):
        return None  # Ansible's, among ours
    stages, nodes = data.get("stages"), data.get("nodes")
    if isinstance(stages, list) and any(_is_stage(item) for item in stages):
        return "playbook"
    if isinstance(nodes, dict) and "stages" not in data:
        return "inventory"
    if not sure and not _mostly_ours(data):
        return None
    if "stages" in data:
        return "playbook"
    kinds: list[Kind] = [kind for key in data if (kind := _kind_of_key(key)) is not None]
    if not kinds and isinstance(nodes, list | dict):
        return "inventory"
    return max(kinds, key=kinds.count, default=None)


def _is_stage(item: object) -> bool:
    return isinstance(item, dict) and not item.keys().isdisjoint(("check", "shell", "launch"))


def _mostly_ours(data: Mapping[str, Any]) -> bool:
    """Whether at least half of the keys are ours or nearly so: GitLab has `stages` as well, and kind has `nodes`."""
    known = _keys("inventory") | _keys("playbook")
    return 2 * sum(key in known or _kind_of_key(key) is not None for key in data) >= len(data)


def _kind_of_key(key: str) -> Kind | None:
    """The kind that has such a key while the other has not; a key that is nearly `nodes` or `stages` counts as it."""
    inventory, playbook = _keys("inventory"), _keys("playbook")
    if key in inventory ^ playbook:
        return "inventory" if key in inventory else "playbook"
    if key in inventory:
        return None
    near = nearest(key, ("nodes", "stages", "rendezvous"))
    return _SYNONYMS.get(key) or (None if near is None else "playbook" if near == "stages" else "inventory")


def _keys(kind: Kind) -> set[str]:
    return set(schema(kind)["properties"])


def _of_text(text: str) -> Kind | None:
    """Of a file that is not YAML: by the first of the main keys at the left margin."""
    found = re.search(r"^(stages|nodes)[ \t]*:", text, re.MULTILINE)
    return None if found is None else "playbook" if found[1] == "stages" else "inventory"


# Files read as far as they can be read; an inventory that several playbooks name is read once.


class _AnyVariable(Mapping[str, str]):
    """Where lint runs, secrets are not set: `{env: NAME}` stands for some text, whatever NAME is."""

    def __getitem__(self, name: str) -> str:
        return "secret"

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


ENVIRON = _AnyVariable()


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """`problems` are those of loading; `subject` is what rules look at, None where nothing could be made of it.

    `launch` is that of an inventory which has one, as the playbook that it stands for.
    """

    document: Document
    kind: Kind | None
    problems: tuple[Problem, ...]
    subject: InventoryFile | PlaybookFile | None = None
    launch: PlaybookFile | None = None


class ReadFiles:
    """Every file of one lint, by its real path. `roots` are the real paths of the trees that were asked for."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._read: dict[str, Read] = {}

    def leads_out(self, playbook: Document, path: str) -> str | None:
        """Where a link leads that a playbook names as its inventory, if that is outside; None where no link is."""
        real = leads_out(path, self._roots)
        told = str(playbook.data.get("inventory")) if isinstance(playbook.data, dict) else ""
        plain = os.path.normpath(Path(playbook.path).parent.resolve() / told)
        return real if real != plain else None

    def read(self, path: str, *, named: bool = True, kind: Kind | None = None) -> Read:
        """`named` and `kind` are for a file that is read the first time: what it has to be, if that is known."""
        real = os.path.realpath(path)
        if real not in self._read:
            document = read_document(path)
            kind = kind or kind_of(document, named=named)
            self._read[real] = self._examined(document, kind)
        return self._read[real]

    def _examined(self, document: Document, kind: Kind | None) -> Read:
        if kind == "inventory":
            inventory = examine_inventory(document, environ=ENVIRON)
            if inventory.draft is None or inventory.origins is None:
                return Read(document, kind, inventory.problems)
            file = InventoryFile(document, inventory.draft, inventory.origins, inventory.wrong)
            if not has_launch(document):
                return Read(document, kind, inventory.problems, file)
            return _with_launch(document, inventory.problems, file)
        if kind == "playbook":
            from runbook.checks import CHECKS  # inventories alone need none of them

            playbook = examine_playbook(document, checks=CHECKS, environ=ENVIRON)
            if playbook.draft is None:
                return Read(document, kind, playbook.problems)
            named = inventory_named(document)
            readable = named and Path(named).is_file() and not self.leads_out(document, named)
            there = self.read(named, kind="inventory").subject if named and readable else None
            of_it = there if isinstance(there, InventoryFile) else None
            return Read(
                document, kind, playbook.problems, PlaybookFile(document, playbook.draft, of_it, playbook.wrong)
            )
        other = wrong_kind(document, None)
        return Read(document, None, document.problems if other is None else (other,))


def _with_launch(document: Document, problems: tuple[Problem, ...], file: InventoryFile) -> Read:
    from runbook.checks import CHECKS

    launch = examine_launch(document, checks=CHECKS, environ=ENVIRON)
    told = {(problem.span, problem.message) for problem in problems}  # the schema of both holds the launch
    more = [problem for problem in launch.problems if (problem.span, problem.message) not in told]
    stages = None
    if launch.draft is not None:
        stages = PlaybookFile(launch_document(document), launch.draft, file, launch.wrong)
    return Read(document, "inventory", (*problems, *more), file, stages)


def inventory_named(playbook: Document) -> str | None:
    """The path of the inventory that a playbook names, as `run` finds it: relative to the playbook's own folder."""
    name = playbook.data.get("inventory") if isinstance(playbook.data, dict) else None
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    return os.path.normpath(Path(playbook.path).parent / name)
