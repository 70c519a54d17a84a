"""The inventory that a playbook names: is it there, and can it be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from runbook.lint.files import SUFFIXES
from runbook.lint.reading import Read, ReadFiles, inventory_named
from runbook.load.didyoumean import nearest
from runbook.model.errors import Problem


def named_inventory(playbooks: Sequence[Read], linted: Sequence[Read], reading: ReadFiles) -> Iterator[Problem]:
    """Each playbook's, once it cannot be used. What is wrong with one that is linted itself is told there."""
    for playbook in playbooks:
        path = inventory_named(playbook.document)
        span = playbook.document.span("inventory")
        if path is None:
            continue
        if not Path(path).is_file():
            what = "a folder" if Path(path).is_dir() else "not there"
            help = _neighbour(path) or "the path is relative to the playbook's own folder"
            yield Problem("playbook.missing-inventory", f"the inventory {path} is {what}", span, help)
            continue
        if outside := reading.leads_out(playbook.document, path):
            message = f"the inventory {path} is not read: it is a link that leads out of what is linted, to {outside}"
            yield Problem("playbook.broken-inventory", message, span, f"name it: runbook lint {path}")
            continue
        inventory = reading.read(path, kind="inventory")
        if inventory.kind == "playbook":
            yield Problem("playbook.missing-inventory", f"{path} is a playbook, not an inventory", span)
        elif inventory.problems and inventory not in linted:
            many = len(inventory.problems)
            message = f"the inventory {path} cannot be used: {many} mistake{'s' if many > 1 else ''} in it"
            yield Problem("playbook.broken-inventory", message, span, f"see them with `runbook lint {path}`")


def _neighbour(path: str) -> str | None:
    folder = Path(path).parent
    if not folder.is_dir():
        return None
    names = sorted(file.name for file in folder.iterdir() if file.suffix in SUFFIXES)
    near = nearest(Path(path).name, names)
    return None if near is None else f"did you mean `{near}`, in the same folder?"
