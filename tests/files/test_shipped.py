from __future__ import annotations

from pathlib import Path

import pytest

from runbook.files import shipped_files as subject
from runbook.files.shipped_files import find_inventory, find_playbook, shipped_names, shipped_path
from runbook.model.errors import FilesWrong


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one shipped playbook, and a working folder beside it."""
    top = tmp_path / "repository"
    (top / "runbook").mkdir(parents=True)
    (top / "playbooks").mkdir()
    (top / "playbooks" / "two_node_allreduce.yml").write_text("stages: []\n")
    monkeypatch.setattr(subject, "_PACKAGE", top / "runbook")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return top


def test_a_name_finds_the_shipped_one(checkout: Path) -> None:
    assert find_playbook("two_node_allreduce") == checkout / "playbooks" / "two_node_allreduce.yml"


def test_nearer_ones_come_first(checkout: Path) -> None:
    here = Path("playbooks")
    here.mkdir()
    (here / "two_node_allreduce.yml").touch()
    assert find_playbook("two_node_allreduce") == here / "two_node_allreduce.yml"
    Path("two_node_allreduce.yaml").touch()
    assert find_playbook("two_node_allreduce") == Path("two_node_allreduce.yaml")
    Path("two_node_allreduce").touch()
    assert find_playbook("two_node_allreduce") == Path("two_node_allreduce")


def test_a_folder_of_that_name_does_not_hide_the_playbook(checkout: Path) -> None:
    Path("two_node_allreduce").mkdir()
    assert find_playbook("two_node_allreduce").name == "two_node_allreduce.yml"


def test_a_wheel_carries_them_inside(checkout: Path) -> None:
    inside = checkout / "runbook" / "shipped" / "playbooks"
    inside.mkdir(parents=True)
    (inside / "other.yml").touch()
    assert shipped_names("playbooks") == ["other"]
    assert find_playbook("other") == inside / "other.yml"


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [("a,b,", "a b"), ("me@gpu1", "me@gpu1"), ("10.0.0.1,", "10.0.0.1"), ("gn[01-04,07]", "'gn[01-04,07]'")],
)
def test_hosts_in_the_place_of_an_inventory(checkout: Path, hosts: str, shown: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        find_inventory(hosts)
    help = f"an inventory is a file: runbook inventory init {shown} --out mine.yml"
    assert [problem.help for problem in wrong.value.problems] == [help]


def test_one_word_in_the_place_of_an_inventory_may_be_a_host(checkout: Path) -> None:
    with pytest.raises(FilesWrong) as wrong:
        find_inventory("gpu1")
    assert (
        wrong.value.problems[0].help
        == "name a file, or make one of that host: runbook inventory init gpu1 --out mine.yml"
    )


def test_a_folder_in_the_place_of_an_inventory_tells_its_files(checkout: Path) -> None:
    Path("clusters").mkdir()
    with pytest.raises(FilesWrong, match="clusters is a folder") as wrong:
        find_inventory("clusters")
    assert wrong.value.problems[0].help is None
    for name in ("b.yml", "a.yaml", "notes.txt"):
        (Path("clusters") / name).touch()
    with pytest.raises(FilesWrong) as wrong:
        find_inventory("clusters")
    assert wrong.value.problems[0].help == "name one of its files: clusters/a.yaml, clusters/b.yml"


@pytest.mark.parametrize("name", ["a;b,c", ",", "-o,b", "two,nodes.yml;x", "gn[1;2]"])
def test_no_command_is_made_of_what_are_no_hosts(checkout: Path, name: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        find_inventory(name)
    assert "init" not in (wrong.value.problems[0].help or "")


def test_what_is_not_found_says_where_it_looked(checkout: Path) -> None:
    with pytest.raises(FilesWrong) as wrong:
        find_playbook("two_node_alreduce")
    (problem,) = wrong.value.problems
    assert problem.id == "playbook.not-found"
    assert problem.message == "there is no playbook `two_node_alreduce` here, in playbooks/ or among the shipped ones"
    assert problem.help == "did you mean `two_node_allreduce`?"
    with pytest.raises(FilesWrong, match="there is no folder nowhere") as wrong:
        find_playbook("nowhere/mine.yml")
    assert wrong.value.problems[0].help is not None
    Path("mine.yml").touch()
    for typed in ("min.yml", "mien", "./mine.yaml"):
        with pytest.raises(FilesWrong) as wrong:
            find_inventory(typed)
        assert wrong.value.problems[0].help == "did you mean `mine.yml`?"


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 5000, "nowhere.yml"])
def test_names_that_lead_nowhere(checkout: Path, name: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        find_inventory(name)
    assert wrong.value.problems[0].id == "inventory.not-found"


def test_our_schemas_are_found() -> None:
    assert shipped_path("schemas", "inventory.schema.json").is_file()
