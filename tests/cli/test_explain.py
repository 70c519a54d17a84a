"""`runbook explain VARIABLE`: what the shipped table knows, and nothing that it does not."""

from __future__ import annotations

import re

import pytest

from runbook.cli.explain import MAX_SUGGESTED_IDS, explain, texts_by_key
from runbook.files.schema import load_schema
from runbook.files.shipped_files import shipped_path
from runbook.lint.variables import known_variables
from runbook.model.errors import FilesWrong


def shown(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert explain(name) == 0
    return capsys.readouterr().out


def test_every_variable_has_a_page_with_its_reader_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    for variable in known_variables().values():
        text = shown(variable.name, capsys)
        assert text.startswith(f"{variable.name}: read by {variable.reader}\n"), variable.name
        assert variable.source in text, variable.name
        for fact in (variable.since, variable.deprecated, variable.removed, variable.last, variable.use):
            assert fact is None or fact in text, variable.name
        assert "None" not in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NCCL_IB_DISABLE", "0 or 1"),
        ("nccl_ib_disable", "NCCL_IB_DISABLE: read by NCCL"),
        ("NCCL_P2P_LEVEL", "LOC, NVL, NVB"),
        ("NCCL_BLOCKING_WAIT", "instead:     TORCH_NCCL_BLOCKING_WAIT"),
        ("NCCL_CONNECT_TIMEOUT", "no release of NCCL reads it"),
        ("NCCL_BUFFSIZE", "1 or more bytes"),
        ("MASTER_ADDR", "runbook itself"),
    ],
)
def test_what_a_page_says(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in shown(name, capsys)


@pytest.mark.parametrize("name", ["inventory.schema.json", "playbook.schema.json", "two_node_allreduce.yml"])
def test_a_shipped_file_is_printed_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (file,) = (shipped_path(kind, name) for kind in ("schemas", "playbooks") if shipped_path(kind, name).is_file())
    assert shown(name, capsys) == file.read_text()


@pytest.mark.parametrize(
    ("typed", "near"), [("NCCL_IB_DISABEL", "NCCL_IB_DISABLE"), ("nccl_dbug", "NCCL_DEBUG"), ("firewal", "firewall")]
)
def test_a_near_miss(typed: str, near: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        explain(typed)
    assert wrong.value.problems[0].help == f"did you mean `{near}`?"


@pytest.mark.parametrize(
    ("typed", "help"),
    [
        ("reject", "ids with that word: `no-route-or-reject`, `firewall-reject`"),
        ("clock", "did you mean `clock-skew`?"),
        ("Firewall_Drop", "did you mean `firewall-drop`?"),
    ],
)
def test_a_word_of_an_id_is_enough_to_find_it(typed: str, help: str) -> None:
    with pytest.raises(FilesWrong) as wrong:
        explain(typed)
    assert wrong.value.problems[0].help == help


def test_of_many_ids_with_that_word_some_are_named_and_the_rest_counted() -> None:
    with pytest.raises(FilesWrong) as wrong:
        explain("NCCL_IB_*")
    help = wrong.value.problems[0].help or ""
    assert len(re.findall(r"`NCCL_IB_\w+`", help)) == MAX_SUGGESTED_IDS
    assert re.search(r" and [0-9]+ more$", help)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("gpus", "inventory: node.gpus: "),
        ("rendezvous", "rendezvous: address, port and backend by which ranks find each other\ninventory: rendezvous: "),
        ("HCA", "HCA: an InfiniBand or RoCE adapter\n"),
        ("rendezvous", "Where the ranks meet."),
        ("min_rate_gbps", "inventory: infiniband.min_rate_gbps: a rate in Gbit/s above 0"),
        ("when_bad", "playbook: when_bad: "),
        ("ssh.user", "inventory: ssh.user: a login name"),
        ("node.gpus", "inventory: node.gpus: "),
        ("min_busbw_gbytes", "check: allreduce, with: min_busbw_gbytes\n  fail below"),
    ],
)
def test_a_key_or_a_word_is_told_with_its_place(key: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in shown(key, capsys)


def test_every_key_of_the_schemas_is_told() -> None:
    def keys(part: object) -> set[str]:
        if isinstance(part, list):
            return set().union(*map(keys, part))
        if not isinstance(part, dict):
            return set()
        own = set(part["properties"]) if isinstance(part.get("properties"), dict) else set()
        return own.union(*map(keys, part.values()))

    told = texts_by_key()
    assert keys(load_schema("inventory")) | keys(load_schema("playbook")) <= {*told, "type", "properties"}
    assert all(text.strip() and "None" not in text for texts in told.values() for text in texts)
