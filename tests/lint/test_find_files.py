from __future__ import annotations

import os
from pathlib import Path

import pytest

from runbook.files.yaml_document import MAX_BYTES
from runbook.lint.find_files import find_files
from runbook.lint.run import lint
from runbook.model.errors import FilesWrong

from .write import PAIR, PING, ids, write


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def paths(*names: str) -> list[str]:
    return [found.path for found in find_files(names)]


def refused(*names: str) -> list[str]:
    with pytest.raises(FilesWrong) as wrong:
        lint(names)
    return [problem.id for problem in wrong.value.problems]


def test_a_folder_is_walked_in_order_and_hidden_things_are_left_out(here: Path) -> None:
    write(here, b_yml=PAIR, a_yml=PAIR, sub__c_yml=PAIR, sub__deep__d_yml=PAIR)
    write(here, **{".hidden_yml": PAIR, ".git__e_yml": PAIR, "notes.txt": "x"})
    (here / "f.yaml").write_text(PAIR)
    assert paths(".") == ["a.yml", "b.yml", "f.yaml", "sub/c.yml", "sub/deep/d.yml"]
    assert paths("sub") == ["sub/c.yml", "sub/deep/d.yml"]


def test_each_file_is_looked_at_once_whatever_leads_to_it(here: Path) -> None:
    write(here, sub__a_yml=PAIR)
    (here / "sub" / "loop").symlink_to(here)
    (here / "again").symlink_to(here / "sub")
    (here / "b.yml").symlink_to(here / "sub" / "a.yml")
    assert len(paths(".", "sub", "sub/a.yml", "b.yml")) == 1


def test_a_named_file_needs_no_suffix(here: Path) -> None:
    write(here, mine=PAIR)
    assert ids("mine") == []


def test_nothing_to_look_at_is_an_error_and_no_empty_success(here: Path) -> None:
    (here / "empty").mkdir()
    write(here, compose_yml="services: {web: {image: nginx}}\n")
    assert refused("empty") == ["arguments.nothing-to-lint"]
    assert refused(".") == ["arguments.nothing-to-lint"]
    assert refused("gone.yml", "empty", "no\0name") == ["arguments.missing-path", "arguments.missing-path"]


def test_a_file_of_others_is_noted_where_it_was_only_met(here: Path) -> None:
    write(here, a_yml=PAIR, compose_yml="services: {web: {image: nginx}}\n", gitlab_yml="stages: [a]\nj: 1\nk: 2\n")
    report = lint(["."])
    assert report.findings == ()
    assert report.files == ("a.yml",)
    assert [note.partition(":")[0] for note in report.notes] == ["compose.yml", "gitlab.yml"]
    assert ids("compose.yml") == ["compose.yml:1 file.kind"]
    write(here, inventories__compose_yml="services: {web: {image: nginx}}\n")
    assert "compose.yml:1 inventory.missing-key" in ids("inventories")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("node:\n  a: {address: 10.0.0.1}\n", "inventory"),
        ("hosts: [a, b]\n", "inventory"),
        ("noeds: {a: {}}\nrendezvous: {port: 1}\n", "inventory"),
        ("name: x\nnodes: [a, b]\n", "inventory"),
        ("stage:\n  - check: ping\n", "playbook"),
        ("name: x\ninventory: y\nnodes: all\nstagse: []\n", "playbook"),
        ("- check: ping\n", "yaml"),
        ("# yaml-language-server: $schema=../schemas/playbook.schema.json\nname: x\n", "playbook"),
        ("nodes:\n  a: {address: [\n", "yaml"),
    ],
)
def test_a_misspelt_file_of_ours_is_told_by_what_it_looks_like(here: Path, text: str, kind: str) -> None:
    write(here, a_yml=text)
    found = ids(".")
    assert found
    assert any(f" {kind}." in one for one in found), found


@pytest.mark.parametrize(
    "text",
    [
        "kind: Cluster\napiVersion: v1\nnodes: [{role: control-plane}]\n",
        "name: CI\non: push\njobs: {a: {}}\n",
        "all: {hosts: {a: null}}\n",
        "- hosts: all\n  tasks: []\n",
        "a: {{ helm }}\n",
        "",
        "# nothing\n",
    ],
)
def test_a_file_of_another_tool_is_not_ours(here: Path, text: str) -> None:
    write(here, a_yml=text, good_yml=PAIR)
    assert ids(".") == []
    assert len(lint(["."]).notes) == 1


def test_what_cannot_be_read_is_a_finding(here: Path) -> None:
    write(here, latin_yml=b"nodes:\n  a: {vars: {o: J\xfcrgen}}\n", utf16_yml="nodes: {}".encode("utf-16"))
    write(here, inventories__empty_yml="", inventories__bom_yml=b"\xef\xbb\xbf" + PAIR.replace("\n", "\r\n").encode())
    (here / "nowhere.yml").symlink_to(here / "gone.yml")
    assert ids("inventories", "latin.yml", "nowhere.yml", "utf16.yml") == [
        "empty.yml:1 yaml.empty",
        "latin.yml:2 file.not-utf8",
        "nowhere.yml:1 file.missing",
        "utf16.yml:1 file.not-utf8",
    ]


@pytest.mark.parametrize("above", ["playbooks", "inventories", "x/playbooks/y"])
@pytest.mark.parametrize("repository", ["", "../..", "."])
def test_what_a_file_is_taken_for_does_not_hang_on_how_its_folder_is_typed(
    here: Path, above: str, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's name says what is in it only inside of what is linted, or of its repository."""
    team = here / above / "team"
    write(team, compose_yml="services: {a: {image: b}}\n", ci_yml="build: {script: [make]}\n", mine_yml=PAIR)
    if repository:
        (team / repository / ".git").mkdir()
    found = set()
    for start, typed in (
        (team, "."),
        (team, str(team)),
        (here, f"{above}/team"),
        (team.parent, "team"),
        (team, "../team"),
    ):
        monkeypatch.chdir(start)
        found.add(tuple(ids(typed)))
    assert len(found) == 1
    inside = repository == "../.." and "x" not in above
    assert bool(found.pop()) is inside


def test_too_large_a_file_is_a_finding(here: Path) -> None:
    with (here / "large.yml").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert ids("large.yml") == ["large.yml:1 file.too-large"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_a_finding(here: Path) -> None:
    write(here, a_yml=PAIR)
    (here / "a.yml").chmod(0)
    assert ids("a.yml") == ["a.yml:1 file.unreadable"]


def test_more_wrong_nodes_than_anybody_reads_are_counted(here: Path) -> None:
    write(here, a_yml="nodes:\n" + "".join(f"  gn{number}: 8\n" for number in range(503)))
    found = ids("a.yml")
    assert found.count("a.yml:2 inventory.more-problems") == 1
    assert len(found) == 501


@pytest.mark.parametrize("pattern", ["n*", "n[1-9]", "!n1", "all", "n[1-2]*", "m[1-9]"])
def test_patterns_that_stand_for_too_many_names_are_not_looked_at(
    here: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    text = f"nodes: {{'n[1-9]': }}\ngroups:\n  g: [{', '.join(['n1', *[repr(pattern)] * 9])}]\n"
    write(here, a_yml=text.replace("g: [", "g: {nodes: [").replace("]\n", "]}\n"))
    assert "a.yml:3 inventory.too-many-names" not in ids("a.yml")
    monkeypatch.setattr("runbook.files.nodes.MAX_SEARCHED_PARTS", 70)
    assert ids("a.yml").count("a.yml:3 inventory.too-many-names") == 1


def test_a_rule_that_finds_very_much_is_not_asked_further_and_that_is_an_error(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runbook.lint.run._MOST_LOOKED_FOR", 10)
    names = "".join(
        f"  0{number}:  # noqa: yaml.octal\n" if number == 25 else f"  0{number}:\n" for number in range(10, 30)
    )
    write(here, a_yml=f"nodes:\n{names}")
    assert ids("a.yml").count("a.yml:14 file.too-many-findings") == 1
    assert sum("yaml.octal" in one for one in ids("a.yml")) == 10
    assert not any("silence.unused" in one for one in ids("a.yml")), "what was not looked for may be there"
    write(here, runbook_lint_yml="ignore: [yaml.octal]\n")
    (here / "runbook_lint.yml").rename(here / ".runbook-lint.yml")
    assert not any("too-many-findings" in one or "yaml.octal" in one for one in ids("a.yml"))


def test_a_pipe_in_a_folder_is_not_waited_for(here: Path) -> None:
    write(here, a_yml=PAIR, playbooks__b_yml=PING)
    os.mkfifo(here / "pipe.yml")
    (here / "link.yml").symlink_to(here / "pipe.yml")
    assert paths(".") == ["a.yml", "playbooks/b.yml"]


def test_a_path_that_there_is_not_is_told_with_one_that_is_nearly_called_so(tmp_path: Path) -> None:
    (tmp_path / "mine.yml").touch()
    with pytest.raises(FilesWrong) as wrong:
        find_files([str(tmp_path / "mien.yml"), str(tmp_path / "other" / "x.yml")])
    near, far = wrong.value.problems
    assert near.help == f"did you mean `{tmp_path / 'mine.yml'}`?"
    assert far.help is None
