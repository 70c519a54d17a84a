"""An inventory with a `launch:` of its own: the playbook that it stands for, and what is wrong in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runbook.checks import CHECKS
from runbook.cli.main import main
from runbook.files.inventory import load_inventory
from runbook.files.playbook import load_launch
from runbook.files.schema import load_schema
from runbook.files.yaml_document import parse_document, read_document
from runbook.launch.ranks import rank_layout
from runbook.lint.run import lint
from runbook.model.errors import FilesWrong

FOUR_NODES = """\
order: alphabet
rendezvous: {master: gn6, address: 10.0.0.6, backend: gloo}
nodes:
  gn7: {address: 10.0.0.7}
  gn40: {address: 10.0.0.40}
  gn39: {address: 10.0.0.39}
  gn6: {address: 10.0.0.6}
launch:
  command: [python, train.py, --ranks, "{{ world_size }}", --rate, 1e-4]
  env: {OMP_NUM_THREADS: 2}
"""

TWO_NODES = """\
order: alphabet
rendezvous: {master: gn6, address: 10.0.0.6, backend: gloo}
defaults: {processes: 2}
nodes:
  gn7: {address: 10.0.0.7}
  gn6: {address: 10.0.0.6}
"""


def placed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "group.yml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (FOUR_NODES, [("gn6-0", 0, 0, 0), ("gn39-0", 1, 0, 1), ("gn40-0", 2, 0, 2), ("gn7-0", 3, 0, 3)]),
        (TWO_NODES, [("gn6-0", 0, 0, 0), ("gn6-1", 1, 1, 0), ("gn7-0", 2, 0, 1), ("gn7-1", 3, 1, 1)]),
    ],
)
def test_the_alphabet_gives_the_tables_of_the_seed(
    tmp_path: Path, text: str, table: list[tuple[str, int, int, int]]
) -> None:
    """Worker, RANK, LOCAL_RANK, NODE_RANK, as the document that asked for the rule prints them."""
    ranks = rank_layout(load_inventory(placed(tmp_path, text))[0]).ranks
    assert [(f"{one.node}-{one.local_rank}", one.rank, one.local_rank, one.node_rank) for one in ranks] == table


def test_by_name_digits_are_numbers(tmp_path: Path) -> None:
    found, _ = load_inventory(placed(tmp_path, FOUR_NODES.replace("alphabet", "name")))
    assert [node.name for node in found.nodes] == ["gn6", "gn7", "gn39", "gn40"]


def test_the_launch_stands_after_the_checks(tmp_path: Path) -> None:
    playbook = load_launch(read_document(placed(tmp_path, FOUR_NODES)), checks=CHECKS)
    assert [stage.name for stage in playbook.stages] == ["ping", "port", "firewall", "ibstat", "connection", "launch"]
    assert playbook.stages[-1].launch.command == (
        *("python", "train.py", "--ranks", "{{ world_size }}", "--rate"),
        "1e-4",  # as it was typed
    )
    assert playbook.stages[-1].launch_spans["command", 1].line == 9


def test_run_plans_it_without_a_playbook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-i", str(placed(tmp_path, FOUR_NODES)), "-C"]) == 0
    assert "direct: python train.py --ranks 4 --rate 1e-4" in capsys.readouterr().out


def test_render_writes_its_scripts_without_a_playbook(tmp_path: Path) -> None:
    assert main(["render", "-i", str(placed(tmp_path, FOUR_NODES)), "--out", str(tmp_path / "out")]) == 0
    assert "--ranks" in (tmp_path / "out" / "gn39" / "launch.sh").read_text()


@pytest.mark.parametrize("command", ["run", "render"])
def test_without_a_launch_a_playbook_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = placed(tmp_path, TWO_NODES)
    assert main([command, "-i", str(path)]) == 2
    assert f"{path} has no `launch:`, and no playbook is named" in capsys.readouterr().err
    assert main([command]) == 2
    assert "neither a playbook nor an inventory is named" in capsys.readouterr().err


def test_what_is_wrong_in_it_is_told_once_and_at_its_place(tmp_path: Path) -> None:
    text = FOUR_NODES.replace("OMP_NUM_THREADS: 2", "NCCL_DEBUGG: INFO").replace("  env", "  retrys: 2\n  env")
    found = [(finding.rule.id, finding.span.line) for finding in lint([str(placed(tmp_path, text))]).findings]
    assert found == [("inventory.unknown-key", 10), ("env.misspelt-variable", 11)]
    with pytest.raises(FilesWrong):
        load_launch(parse_document(text, "group.yml"), checks=CHECKS)


def test_a_template_in_it_is_filled_in_and_elsewhere_is_told(tmp_path: Path) -> None:
    assert lint([str(placed(tmp_path, FOUR_NODES))]).findings == ()
    text = FOUR_NODES.replace("{{ world_size }}", "{{ wrld_size }}").replace("name: x", "")
    found = lint([str(placed(tmp_path, text))]).findings
    assert [(one.rule.id, one.span.line) for one in found] == [("template.undefined", 9)]


def test_a_secret_on_its_command_line_is_told(tmp_path: Path) -> None:
    path = placed(tmp_path, FOUR_NODES.replace("--rate, 1e-4", "--api-key=4d8f1b0c93e27a65"))
    assert "secret.argument" in {finding.rule.id for finding in lint([str(path)]).findings}


def test_both_schemas_know_the_same_launch() -> None:
    assert json.dumps(load_schema("inventory")["$defs"]["launch"]) == json.dumps(
        load_schema("playbook")["$defs"]["launch"]
    )
