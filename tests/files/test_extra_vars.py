from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from runbook.files.extra_vars import parse_extra_vars, unknown_extra_vars
from runbook.files.templating import fill_templates
from runbook.files.yaml_document import parse_document
from runbook.model.errors import FilesWrong

from .write import playbook


def test_the_three_forms(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("a: [1, 2]\nb: NO\nc: over\n")
    found = parse_extra_vars(
        [f"@{file}", "c=3", "d=0644", "e=true", "f=x=y", "g=", 'h="1"', '{"i": {"j": 1}, "d": null}']
    )
    assert found == {
        "a": [1, 2],
        "b": "NO",
        "c": 3,
        "d": None,
        "e": True,
        "f": "x=y",
        "g": "",
        "h": '"1"',
        "i": {"j": 1},
    }


@pytest.mark.parametrize(
    ("argument", "id"),
    [
        ("novalue", "extra.syntax"),
        ("=x", "extra.bad-name"),
        ("a-b=1", "extra.bad-name"),
        ("{bad", "extra.syntax"),
        ("@/nowhere/vars.yml", "file.missing"),
        ('{"a b": 1}', "extra.bad-name"),
        ("1=2", "extra.bad-name"),
        ("{" * 100000, "extra.syntax"),
        ('{"a": NaN}', "extra.syntax"),
        ("a=1 b=2", "extra.syntax"),
        ("a= b=2 c=x", "extra.syntax"),
        ('{"a": 1, "a": 2}', "extra.syntax"),
    ],
)
def test_what_is_refused(argument: str, id: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        parse_extra_vars(["ok=1", argument])
    assert [problem.id for problem in wrong.value.problems] == [id]


def test_several_variables_in_one_argument_are_no_value() -> None:
    with pytest.raises(FilesWrong) as wrong:
        parse_extra_vars(["a=1 b=2"])
    (problem,) = wrong.value.problems
    assert problem.help == """write one -e for each; of one value: -e '{"a": "…"}'"""
    assert parse_extra_vars(['{"a": "1 b=2"}', "flags=--lr 1 --x=2"]) == {"a": "1 b=2", "flags": "--lr 1 --x=2"}


@given(
    st.sampled_from(
        [
            '{"db_password": "@", "a": 1',
            '{"hf_token": "@", "hf_token": "x"}',
            '["@"]',
            '{"a": NaN, "b": "@"}',
            '{"pass word": "@"}',
            "db_password=@ x=1",
            "x=1 db_password=@",
            "db_password: @",
            "db_password @",
            "db-password=@",
            "db password=@",
            "db_password: @==",
            "1=@",
            "=@",
        ]
    ),
    st.text("abcdefghij-_.:/@ ", max_size=12).map(lambda text: f"Zq7{text}k9"),
)
def test_no_value_is_shown_of_what_is_refused(argument: str, value: str) -> None:
    assume(value.split()[0] not in argument)
    with suppress(FilesWrong):
        parse_extra_vars([argument.replace("@", value)])
        return
    with pytest.raises(FilesWrong) as wrong:
        parse_extra_vars([argument.replace("@", value)])
    told = "".join(f"{problem.message} {problem.help}" for problem in wrong.value.problems)
    assert not [part for part in value.split() if part in told and any(map(str.isdigit, part))], told


def test_a_number_stands_in_texts_as_it_was_typed(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("b: [2.10]\n")
    found = parse_extra_vars(["a=2.10", f"@{file}"])
    assert found == {"a": 2.1, "b": [2.1]}
    assert fill_templates("torch=={{ a }} {{ b[0] }} {{ a + 1 }}", found) == "torch==2.10 2.10 3.1"
    assert str(fill_templates("{{ a }}", found)) == "2.10"
    assert json.dumps(copy.deepcopy(found)) == '{"a": 2.1, "b": [2.1]}'


def test_a_file_must_hold_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("- a\n")
    with pytest.raises(FilesWrong) as wrong:
        parse_extra_vars([f"@{file}"])
    assert wrong.value.problems[0].id == "yaml.not-a-mapping"


PLAYBOOK = """\
name: x
vars: {budget: 5s}
stages:
  - {check: allreduce, with: {iterations: "{{ rounds }}"}, when: thorough}
  - {shell: "echo {{ word }}"}
"""
INVENTORY = """\
defaults: {vars: {site: here}}
nodes: {a: {vars: {rack: 1}}}
groups: {g: {nodes: a, defaults: {vars: {row: 2}}}}
"""


@pytest.mark.parametrize("name", ["budget", "rounds", "thorough", "word", "site", "rack", "row"])
def test_a_name_that_either_file_knows(tmp_path: Path, name: str) -> None:
    assert (
        unknown_extra_vars([f"{name}=1"], playbook(tmp_path, PLAYBOOK), parse_document(INVENTORY, "x.yml").data) == []
    )


def test_a_slip_of_the_finger(tmp_path: Path) -> None:
    with pytest.raises(FilesWrong) as wrong:
        unknown_extra_vars(["buget=3s", '{"nonsense": 1}', "rounds=2"], playbook(tmp_path, PLAYBOOK), {})
    (problem,) = wrong.value.problems
    assert (problem.id, problem.help) == ("extra.unknown-variable", "did you mean `budget`?")
    assert "`buget`" in problem.message


def test_a_name_of_another_playbook_is_only_told(tmp_path: Path) -> None:
    assert unknown_extra_vars(["budget=3s", '{"nonsense": 1}'], playbook(tmp_path, PLAYBOOK), {}) == ["nonsense"]


def test_a_file_of_variables_may_serve_several_playbooks(tmp_path: Path) -> None:
    (tmp_path / "vars.yml").write_text("of_another: 1\n")
    assert unknown_extra_vars([f"@{tmp_path}/vars.yml"], playbook(tmp_path, PLAYBOOK), {}) == []


def test_a_file_that_ansible_vault_has_encrypted_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "vault.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    with pytest.raises(FilesWrong) as caught:
        parse_extra_vars([f"@{tmp_path / 'vault.yml'}"])
    (problem,) = caught.value.problems
    assert "Ansible Vault has encrypted this file" in problem.message
    assert "`{env: NAME}`" in (problem.help or "")
