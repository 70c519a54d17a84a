"""A tree that was cloned shows no line of a file that one of its links leads to, whatever kind of file it claims to be."""

from __future__ import annotations

import io
import itertools
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from profiles import one_in

from runbook.cli.main import main

SECRET = "hunter2-of-the-one-who-looks"
CONTENTS = {
    "a password file": f"root:{SECRET}:0:0:root:/root:/bin/sh\n",
    "a key": f"-----BEGIN OPENSSH PRIVATE KEY-----\n{SECRET}\n",
    "an inventory": f"nodes:\n  node-a: {{address: {SECRET}, {SECRET}: 1}}\n",
    "a playbook": f"stages:\n- chek: {SECRET}\n",
    "settings": f"ignore: [{SECRET}]\n{SECRET}: 1\n",
    "toml": f"[tool.runbook.lint]\n{SECRET} = [\n",
}
LINKS = {
    "a file": "inventories/x.yml",
    "a file beside": "x.yaml",
    "a folder": "inventories",
    "a playbook's inventory": "linked.yml",
    "settings": ".runbook-lint.yml",
    "toml": "pyproject.toml",
}
GOOD = "stages:\n- check: ping\n"


@dataclass
class Done:
    code: int
    said: str


def runbook(*arguments: str) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments])
    return Done(code, out.getvalue() + err.getvalue())


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "tree" / "playbooks").mkdir(parents=True)
    (tmp_path / "tree" / "playbooks" / "good.yml").write_text(GOOD)
    (tmp_path / "tree" / "playbooks" / "names.yml").write_text(f"inventory: ../linked.yml\nnodes: all\n{GOOD}")
    monkeypatch.chdir(tmp_path / "tree")
    return tmp_path / "tree"


@pytest.mark.parametrize(("content", "link"), one_in(5, itertools.product(CONTENTS, LINKS)))
def test_no_line_of_a_file_outside_is_shown(tree: Path, content: str, link: str) -> None:
    target = tree.parent / "outside" / "x.yml"
    target.write_text(CONTENTS[content])
    place = tree / LINKS[link]
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(target.parent if link == "a folder" else target)
    for arguments in (["lint", "."], ["lint", str(tree)], ["lint", "playbooks"], ["lint", ".", "-o", "json"]):
        done = runbook(*arguments)
        assert done.code in (0, 1, 2), done.said
        assert SECRET not in done.said, arguments
    if link.startswith("a f"):
        assert f"{LINKS[link]}: left out: it leads out of what is linted" in runbook("lint", ".").said


def test_the_only_inventory_here_is_not_one_from_elsewhere(tree: Path) -> None:
    target = tree.parent / "outside" / "x.yml"
    target.write_text(CONTENTS["an inventory"])
    (tree / "inventory.yml").symlink_to(target)
    done = runbook("inventory", "list")
    assert done.code == 2
    assert SECRET not in done.said
    assert "leads out of this folder" in done.said


def test_what_is_named_is_read_wherever_it_leads(tree: Path) -> None:
    target = tree.parent / "outside" / "x.yml"
    target.write_text(CONTENTS["an inventory"])
    (tree / "mine.yml").symlink_to(target)
    assert SECRET in runbook("lint", "mine.yml").said


def test_a_link_inside_is_followed(tree: Path) -> None:
    (tree / "inventories").mkdir()
    (tree / "prod.yml").write_text("nodes:\n  node-a: {address: 10.0.0.1, gpu: 8}\n")
    (tree / "inventories" / "now.yml").symlink_to("../prod.yml")
    done = runbook("lint", "inventories", "prod.yml")
    assert "unknown key `gpu`" in done.said
    assert "left out" not in done.said
