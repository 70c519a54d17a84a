"""The scripts are driven by the shells themselves, in a folder with a few files."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runbook.cli import argument_parser
from runbook.cli.completion import Shell, _completable_commands, completion

SHIPPED = ("two_node_allreduce", "train_single_gpu")
Complete = Callable[[str], set[str]]


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser("runbook")
    root.add_argument("--version", action="version", version="0.1.0")
    commands = root.add_subparsers(dest="command")
    run = commands.add_parser("run", help="run a playbook: [stage] by 'stage', at $HOME `now`")
    run.add_argument("playbook", metavar="PLAYBOOK")
    run.add_argument("-i", "--inventory", metavar="INV", help="the inventory [yaml] (default: %(default)s)")
    run.add_argument("-o", "--output", choices=["text", "json", "jsonl", "junit"])
    run.add_argument("-f", "--forks", type=int, metavar="N")
    run.add_argument("-v", "--verbose", action="count", help="100 %% of it")
    run.add_argument("-C", "--plan", action="store_true")
    run.add_argument("--run-dir", metavar="DIR")
    run.add_argument("--hidden", help=argparse.SUPPRESS)
    commands.add_parser("lint", help="check files").add_argument("paths", nargs="+", metavar="PATH")
    inventory = commands.add_parser("inventory", help="look at an inventory").add_subparsers(dest="what")
    inventory.add_parser("list", help="names")
    inventory.add_parser("graph").add_argument("-i", "--inventory", metavar="INV")
    commands.add_parser("completion").add_argument("shell", choices=["bash", "zsh", "fish"])
    return root


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.yml").touch()
    (tmp_path / "with space.yaml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.yml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=["bash", "zsh", "fish"])
def complete(request: pytest.FixtureRequest, folder: Path) -> Complete:
    """What the shell offers for a line, the cursor at its end."""
    shell: Shell = request.param
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / ".script"
    script.write_text(completion(parser(), shell, SHIPPED))
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell]


def bash(line: str) -> set[str]:
    words = line.replace("=", " = ").split(" ")  # as COMP_WORDBREAKS does
    words = [word for number, word in enumerate(words) if word or number == len(words) - 1]
    driver = (
        'source ./.script; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        '_runbook_complete 2>&1; for reply in "${COMPREPLY[@]}"; do echo "$reply"; done'
    )
    return said(["bash", "--norc", "-c", driver, "bash", "", *words])


def fish(line: str) -> set[str]:
    shown = said(["fish", "--no-config", "-c", 'source ./.script; complete -C "$argv[1]"', line])
    return {offer.split("\t")[0].rpartition("=")[2] for offer in shown}


ZSH_DRIVER = r"""
zmodload zsh/zpty
zpty driven "env TERM=dumb zsh -f -i"
hear() { local piece; heard=''; while zpty -r driven piece; do heard+=$piece; [[ $heard == *$1* ]] && return; done }
zpty -w driven "PS1= RPS1=; stty -echo; unsetopt zle_bracketed_paste 2>/dev/null; echo rea''dy-1"
hear ready-1
cat > .listener <<'EOF'
autoload -Uz compinit; compinit -u -D
source ./.script
compadd() {
    if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)* ]]; then builtin compadd "$@"; return; fi
    local -a __hits; builtin compadd -A __hits "$@"
    local hit; for hit in $__hits; do print -r -- "OFFER<$hit>" >> .offers; done
    builtin compadd "$@"
}
zle -C listen list-choices _main_complete
press() { zle listen; print done >> .finished }
zle -N press
bindkey '^I' press
print rea''dy-2
EOF
zpty -w driven "source ./.listener"
hear ready-2
zpty -w -n driven "$1"$'\t'
for ((i = 0; i < 600; i++)); do [[ -e .finished ]] && break; zpty -r -t driven piece; sleep 0.05; done
zpty -d driven
[[ -e .finished ]] || print -r -- "zsh never finished"
[[ -e .offers ]] && cat .offers
rm -f .offers .finished
"""


def zsh(line: str) -> set[str]:
    """A real completion in a real zsh: `compadd` is listened to while Tab is pressed on a pseudo-terminal."""
    shown = said(["zsh", "-f", "-c", ZSH_DRIVER, "zsh", line])
    assert "zsh never finished" not in shown
    return {offer.removeprefix("OFFER<").removesuffix(">").replace("\\", "") for offer in shown}


def said(command: list[str]) -> set[str]:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    assert not ran.stderr, ran.stderr
    return {line for line in ran.stdout.splitlines() if line}


def test_commands_are_offered(complete: Complete) -> None:
    assert complete("runbook ") == {"run", "lint", "inventory", "completion"}
    assert complete("runbook ru") == {"run"}


def test_commands_below_commands(complete: Complete) -> None:
    assert complete("runbook inventory ") == {"list", "graph"}
    assert complete("runbook inventory gr") == {"graph"}
    assert "--inventory" in complete("runbook inventory graph --")


def test_options_belong_to_their_command(complete: Complete) -> None:
    offered = complete("runbook run --")
    assert {"--inventory", "--output", "--forks", "--verbose", "--plan", "--run-dir", "--help"} <= offered
    assert "--hidden" not in offered
    assert "--version" not in offered
    assert "--output" not in complete("runbook lint --")


def test_choices_are_offered(complete: Complete) -> None:
    assert complete("runbook run -o ") == {"text", "json", "jsonl", "junit"}
    assert complete("runbook run --output=js") == {"json", "jsonl"}
    assert complete("runbook completion ") == {"bash", "zsh", "fish"}


def test_a_playbook_is_shipped_or_a_file(complete: Complete) -> None:
    assert {offer.rstrip("/") for offer in complete("runbook run ")} == {
        *SHIPPED,
        "mine.yml",
        "with space.yaml",
        "books",
    }
    assert "two_node_allreduce" in complete("runbook run -v -o json -f 4 two")


def test_an_inventory_is_a_yaml_file(complete: Complete) -> None:
    assert {offer.rstrip("/") for offer in complete("runbook run mine.yml -i ")} == {
        "mine.yml",
        "with space.yaml",
        "books",
    }
    assert {Path(offer).name for offer in complete("runbook run mine.yml --inventory=books/")} == {"one.yml"}


def test_folders_and_files(complete: Complete) -> None:
    assert {offer.rstrip("/") for offer in complete("runbook run --run-dir ")} == {"books"}
    assert {"mine.yml", "notes.txt"} <= complete("runbook lint books ")


def test_numbers_are_not_guessed(complete: Complete) -> None:
    assert complete("runbook run -f ") == set()


def test_files_are_offered_only_where_a_file_is_meant() -> None:
    commands = list(_completable_commands(argument_parser.make_parser(), ()))
    values = [value for command in commands for value in (*command.places, *(one.value for one in command.options))]
    assert {value.name for value in values if value and value.kind == "files"} == {"FILE", "FILE.html", "LOG", "PATH"}


def test_a_playbook_named_like_a_command(complete: Complete) -> None:
    assert "--output" in complete("runbook run lint --")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_parses(shell: Shell, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = folder / "script"
    script.write_text(completion(parser(), shell, ("it's", "a$(touch pwned)")))
    assert said([shell, "-n", str(script)]) == set()


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_names_are_never_run(shell: Shell, folder: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / ".script").write_text(
        completion(parser(), shell, ("a$(touch pwned)", "b`touch pwned`", "c(touch pwned)"))
    )
    {"bash": bash, "fish": fish}[shell]("runbook run ")
    assert not (folder / "pwned").exists()
