"""Commands and options of other programs: what is to be typed is said, and exists."""

from __future__ import annotations

import re

import pytest

from runbook.cli.argument_parser import parser
from runbook.files.toml import own_table


def said(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        parser().parse_args(line.split())
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("init gpu1 gpu2", "runbook inventory init HOST…"),
        ("ping -i mine.yml", "`- check: …`"),
        ("dry_run", "runbook run PLAYBOOK -C"),
        ("lnt x.yml", "did you mean `lint`?"),
        ("inventory lst", "did you mean `list`?"),
        ("run x --list-hosts", "-C prints ranks and stages"),
        ("run x --nproc_per_node=8", "`gpus:`"),
        ("run x -K", "never becomes another user"),
        ("run x -k", "passwords are never asked for"),
    ],
)
def test_a_word_of_another_program(line: str, help: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(line, capsys)
    assert help in told.rpartition("help: ")[2]


@pytest.mark.parametrize("line", ["frobnicate", "run x --frobnicate", "run x --forks many"])
def test_nothing_is_said_of_other_mistakes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "help:" not in said(line, capsys)


def test_an_argument_adds_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["run", "x", "--list-hosts\nerror: nothing"])
    assert "\nerror: nothing" not in capsys.readouterr().err


def test_what_is_to_be_typed_exists_and_is_no_word_of_ours() -> None:
    table = own_table("runbook.cli", "other_words.toml")
    commands = next(action.choices for action in parser()._actions if action.dest == "command")
    assert isinstance(commands, dict)
    for one in table["commands"]:
        assert set(commands).isdisjoint(one["for"].split())
        named = re.match(r"runbook (\S+)", one["write"])
        assert named is not None
        assert named[1] == "--help" or named[1] in commands
    ours = {option for action in commands["run"]._actions for option in action.option_strings}
    for one in table["options"]:
        assert ours.isdisjoint(one["for"].split())
