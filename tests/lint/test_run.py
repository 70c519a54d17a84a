from __future__ import annotations

from pathlib import Path

import pytest

from runbook.cli.main import main
from runbook.files.shipped_files import shipped_path
from runbook.lint.rule_inputs import InventoryFile
from runbook.lint.run import RuleFailed, lint

from .write import PAIR, PING, ids, write


def test_what_we_ship_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", str(shipped_path("inventories")), str(shipped_path("playbooks"))]) == 0
    assert capsys.readouterr().out.startswith("clean: ")


def test_a_secret_that_is_not_set_here_is_no_finding(tmp_path: Path) -> None:
    write(
        tmp_path,
        a_yml=PAIR + "env: {WANDB_API_KEY: {env: RUNBOOK_TEST_NO_SUCH_VARIABLE}}\n",
        b_yml="stages:\n  - launch: {command: [train.py], env: {TOKEN: {env: RUNBOOK_TEST_NO_SUCH_VARIABLE}}}\n",
    )
    assert ids(tmp_path) == []


def test_lint_reads_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNBOOK_TEST_SECRET", "line\nbreak hunter2")
    write(tmp_path, a_yml=PAIR + "env: {TOKEN: {env: RUNBOOK_TEST_SECRET}}\n")
    main(["lint", str(tmp_path)])
    assert "hunter2" not in capsys.readouterr().out
    assert ids(tmp_path) == []


def test_one_lint_tells_everything_of_all_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        inventories__a_yml="nodes:\n  node-a: {address: 10.0.0.1, gpsu: 2}\n  node-b: {address: 10.0.0.2:22}\n",
        inventories__b_yml="nodes: [\n",
        playbooks__c_yml="inventory: ../inventories/gone.yml\nstages:\n  - {check: pnig, when: typo > 1}\n  - {check: port, with: {x: 1}}\n",
    )
    assert ids(tmp_path / "inventories", tmp_path / "playbooks") == [
        "a.yml:2 inventory.unknown-key",
        "a.yml:3 inventory.bad-address",
        "b.yml:2 yaml.syntax",
        "c.yml:1 playbook.missing-inventory",
        "c.yml:3 playbook.unknown-check",
        "c.yml:3 template.undefined",
        "c.yml:4 playbook.unknown-argument",
    ]


def test_an_inventory_is_told_once_however_many_playbooks_name_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        a_yml=PAIR + "  node-c: {adress: x}\n",
        b_yml=f"inventory: a.yml\n{PING}",
        c_yml=f"inventory: ./a.yml\n{PING}",
    )
    assert ids(tmp_path) == ["a.yml:4 inventory.unknown-key"]
    assert ids(tmp_path / "b.yml") == ["b.yml:1 playbook.broken-inventory"]


def test_wrong_values_are_not_taken_for_their_defaults(tmp_path: Path) -> None:
    """Without its `gpus` a node has one rank, without its groups a pattern means nothing: neither is the user's doing."""
    play = "inventory: a.yml\nstages:\n  - check: connection\n  - {check: ping, nodes: rack1}\n"
    nodes = "nodes:\n  node-a: {address: 10.0.0.1, gpus: many}\n"
    write(tmp_path, a_yml=nodes + "groups: {rack1: {nodes: node-a}}\n", b_yml=play)
    assert ids(tmp_path) == ["a.yml:2 inventory.wrong-type"]
    write(tmp_path, a_yml=nodes.replace("gpus", "gpuss") + "groups: {rack1: {nodes: node-a}}\n")
    assert ids(tmp_path) == ["a.yml:2 inventory.unknown-key"]
    write(tmp_path, a_yml=nodes.replace("many", "2") + "gruops: {rack1: {nodes: node-a}}\n")
    assert ids(tmp_path) == ["a.yml:3 inventory.unknown-key"]
    write(
        tmp_path,
        b_yml="vars: {bad-name: 3, n: 4}\nstages:\n  - {check: allreduce, with: {iterations: '{{ m + n }}'}}\n",
    )
    assert ids(tmp_path / "b.yml") == ["b.yml:1 playbook.bad-name"]


def test_a_rule_that_fails_is_our_bug_and_no_clean_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def bad_rule(file: InventoryFile) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr("runbook.lint.run.INVENTORY_RULES", (bad_rule,))
    write(tmp_path, a_yml=PAIR)
    with pytest.raises(RuleFailed, match=r"bad_rule failed on .*a\.yml"):
        lint([str(tmp_path)])
    assert main(["lint", str(tmp_path)]) == 70
    assert "This is a bug" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("pattern", "unplayed"),
    [("all", 0), ("node-a", 1), ("node-a:node-b", 0), ("'!node-a'", 1), ("gone", 2)],
)
def test_a_node_that_no_playbook_selects_is_told(tmp_path: Path, pattern: str, unplayed: int) -> None:
    write(tmp_path, a_yml=PAIR, b_yml=f"inventory: a.yml\nnodes: {pattern}\n{PING}")
    assert sum(one.endswith("node-in-no-play") for one in ids(tmp_path)) == unplayed
    write(tmp_path, c_yml=PING)
    assert not any(one.endswith("node-in-no-play") for one in ids(tmp_path)), "c.yml may be meant for it, with -i"


@pytest.mark.parametrize("output", ["text", "github", "sarif", "json"])
def test_a_secret_in_a_file_is_told_and_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    write(tmp_path, a_yml=PAIR + "env: {DB_PASSWORD: Tr0ub4dorAnd3, NCCL_DEBGU: INFO}\n")
    assert main(["lint", "-o", output, str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "secret.value" in out
    assert "Tr0ub4dor" not in out
