"""Commands and options of other programs: what is to be typed is said, and exists."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

import pytest

from runbook.cli.argument_parser import make_parser
from runbook.files.shipped_files import load_own_table


def said(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stopped:
        make_parser().parse_args(line.split())
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
        ("run x --json", "-o json"),
        ("run x --limitt a", "did you mean `--limit`?"),
        ("run x mine.yml", "`-i mine.yml`"),
        ("inventory list mine.yml", "`-i mine.yml`"),
        ("render x --shell powershell", "did you mean `ps1`?"),
        ("lint -i mine.yml", "runbook lint FILE"),
        ("run x -o jason", "did you mean `json`?"),
        ("--verison", "did you mean `--version`?"),
        ("-V", "runbook --version"),
        ("help run", "runbook run --help"),
        ("inventory", "list, graph, explain, import, init"),
    ],
)
def test_a_word_of_another_program(line: str, help: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = said(line, capsys)
    assert help in told.rpartition("help: ")[2]


@pytest.mark.parametrize(
    ("line", "help"),
    [
        ("run x -n 2", "`gpus:`"),
        ("logs -n 2", "| tail -n 100"),
        ("start", "runbook run PLAYBOOK"),
        ("agent start", "runbook agent run"),
        ("serve start", "runbook serve, without"),
        ("agent undrain", "runbook agent drain --undo"),
    ],
)
def test_a_word_is_answered_for_the_command_that_it_is_said_to(
    line: str, help: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert help in said(line, capsys).rpartition("help: ")[2]


@pytest.mark.parametrize(
    ("line", "option"),
    [("serve --port 9000", "--port"), ("agent --server x run", "--server"), ("run x --frobnicate", "--frobnicate")],
)
def test_an_option_that_there_is_not_is_named_with_the_usage_of_its_command(
    line: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(line, capsys)
    assert f"unrecognized arguments: {option}" in told
    assert told.startswith(f"usage: runbook {line.split()[0]} ")


@pytest.mark.parametrize("line", ["frobnicate", "run x --frobnicate", "run x --forks many"])
def test_nothing_is_said_of_other_mistakes(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "help:" not in said(line, capsys)


def test_an_argument_adds_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        make_parser().parse_args(["run", "x", "--list-hosts\nerror: nothing"])
    assert "\nerror: nothing" not in capsys.readouterr().err


def commands_of(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return next((action.choices for action in one._actions if isinstance(action.choices, dict)), {})


def options_of(one: argparse.ArgumentParser) -> set[str]:
    """Its own and those of its subcommands."""
    return set(one._option_string_actions).union(*map(options_of, commands_of(one).values()))


def test_what_is_to_be_typed_exists_and_is_no_word_of_ours() -> None:
    table = load_own_table("runbook.cli", "usage_hints.toml")
    commands = commands_of(make_parser())
    for kind, of in (
        ("commands", make_parser()),
        *((name, commands[name]) for name in ("agent", "serve", "inventory")),
    ):
        for one in table.pop(kind):
            assert set(commands_of(of)).isdisjoint(one["for"].split())
            named = re.match(r"runbook ([a-z-]+)", one["write"])
            assert named is None or named[1] == "--help" or named[1] == "--version" or named[1] in commands
    for one in table.pop("options"):
        for name in one.get("of", "run").split():
            assert options_of(commands[name]).isdisjoint(one["for"].split()), name
    choices = {choice for one in every(make_parser()) for action in one._actions for choice in action.choices or ()}
    assert choices.issuperset(one["write"] for one in table.pop("values"))
    assert not table


def every(one: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield one
    for inner in commands_of(one).values():
        yield from every(inner)
