"""Files read as far as they can be read; an inventory that several playbooks name is read once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runbook.lint.files import leads_out
from runbook.lint.kinds import Kind, kind_of
from runbook.lint.subject import InventoryFile, PlaybookFile
from runbook.load.document import Document, read_document
from runbook.load.inventory import examine_inventory
from runbook.load.launch import examine_launch, has_launch, launch_document
from runbook.load.playbook import examine_playbook
from runbook.load.shape import wrong_kind
from runbook.model.errors import Problem


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
    """`problems` are those of loading; `subject` is what rules look at, None where nothing could be made of it. `launch` is that of
    an inventory which has one, as the playbook that it stands for."""

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
