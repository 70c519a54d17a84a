"""Files for the tests of this room, written into a temporary folder."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from runbook.files.inventory import examine_inventory, load_inventory
from runbook.files.playbook import examine_playbook, load_playbook
from runbook.files.yaml_document import parse_document
from runbook.model.inventory import Inventory
from runbook.model.playbook import Playbook


def inventory(folder: Path, text: str, **environ: str) -> Inventory:
    file = folder / "inventory.yml"
    file.write_text(dedent(text), encoding="utf-8")
    return load_inventory(file, environ=environ)[0]


def playbook(folder: Path, text: str, **environ: str) -> Playbook:
    file = folder / "playbook.yml"
    file.write_text(dedent(text), encoding="utf-8")
    return load_playbook(file, environ=environ)


def inventory_problems(text: str) -> list[str]:
    """The ids of what is wrong, from the top of the file to its end."""
    found = examine_inventory(parse_document(dedent(text), "inventory.yml"), environ={})
    return [problem.id for problem in found.problems]


def playbook_problems(text: str) -> list[str]:
    found = examine_playbook(parse_document(dedent(text), "playbook.yml"), environ={})
    return [problem.id for problem in found.problems]
