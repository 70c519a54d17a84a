"""Every broken file gives exactly the text beside it: golden files, made anew with UPDATE_GOLDEN=1.

A file is named after the problem it shows, `ID.yml` or `ID-some-case.yml`, so no id can be without one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from runbook.load import __file__ as load_file
from runbook.load.document import read_document, source_lines
from runbook.load.explain import render_all
from runbook.load.inventory import examine_inventory
from runbook.load.playbook import examine_playbook
from runbook.model.errors import Problem

BROKEN = Path(__file__).parent / "broken"
CHECKS = ("ping", "port", "firewall", "ibstat", "connection", "allreduce")
FILES = sorted(BROKEN.glob("*.yml"), key=lambda path: path.stem)


def problems_of(file: str) -> tuple[Problem, ...]:
    document = read_document(file)
    if (isinstance(document.data, dict) and "stages" in document.data) or file.startswith("playbook"):
        examined = examine_playbook(document, checks=CHECKS, environ={})
        assert (examined.playbook is None) == bool(examined.problems)
        return examined.problems
    inventory = examine_inventory(document, environ={})
    assert (inventory.inventory is None) == bool(inventory.problems)
    return inventory.problems


@pytest.mark.parametrize("file", [path.name for path in FILES])
def test_a_broken_file_is_explained(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN)
    shown = render_all(problems_of(file), source_lines) + "\n"
    golden = BROKEN / f"{file.removesuffix('.yml')}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("file", [path.name for path in FILES])
def test_a_broken_file_shows_the_problem_it_is_named_after(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BROKEN)
    ids = {problem.id for problem in problems_of(file)}
    stem = file.removesuffix(".yml")
    assert any(stem == id or stem.startswith(f"{id}-") for id in ids), ids


def test_no_golden_file_is_left_over() -> None:
    assert sorted(path.stem for path in BROKEN.glob("*.txt")) == [path.stem for path in FILES]


def test_every_problem_about_a_file_has_a_broken_one() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in Path(load_file).parent.glob("*.py"))
    ids = set(re.findall(r'"((?:yaml|pattern)\.[a-z0-9-]+)"', sources))
    about = set(re.findall(r'about_(?:value|key)\(\s*[^"\n]*?(?:\([^)]*\))?,\s*"([a-z-]+)"', sources))
    ids |= {f"inventory.{id}" for id in about} | {f"playbook.{id}" for id in about}
    shown = {path.stem for path in FILES}
    missing = {id for id in ids if not any(stem == id or stem.startswith(f"{id}-") for stem in shown)}
    either = {id.partition(".")[2] for id in missing}
    assert {name for name in either if {f"inventory.{name}", f"playbook.{name}"}.isdisjoint(shown)} == set()
