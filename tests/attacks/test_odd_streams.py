"""Whatever is closed, full, foreign or missing around a command: a sentence at most, and the code that it has anyway.

Real processes, since it is about what a process is born with. One call with everything in order gives the code to expect.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from profiles import one_in
from report.varied import failing, write_run

from runbook.cli.argument_parser import make_parser

ROOT = Path(__file__).parents[2]
INVENTORY = """\
name: here
network: {interface: lo}
defaults: {connection: local, workdir: FOLDER/work, python: PYTHON}
nodes: {node-a: {address: 127.0.0.1}}
"""
PLAYBOOK = (
    "name: one\nstages: [{name: first, shell: 'echo hello'}, {name: second, shell: 'exit CODE', expect: {exit: 3}}]\n"
)
RUN = ("run", "pass.yml", "-i", "inventory.yml", "--run-dir", "FRESH")
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": RUN,
    "run that fails": ("run", "fail.yml", "-i", "inventory.yml", "--run-dir", "FRESH", "-o", "json"),
    "lint that finds": ("lint", "bad.yml"),
    "diagnose": ("diagnose", "oom.log"),
    "ps": ("ps", "-i", "inventory.yml"),
    "no such file": ("run", "no-such.yml"),
}
MORE: dict[str, tuple[str, ...]] = {
    **{f"run -o {kind}": (*RUN, "-o", kind) for kind in ("jsonl", "junit")},
    "run -C": (*RUN, "-C"),
    **{f"lint -o {kind}": ("lint", "-o", kind, "bad.yml") for kind in ("json", "sarif", "github")},
    "lint": ("lint", "pass.yml"),
    "lint of nothing": ("lint", "work"),
    "diagnose -o json": ("diagnose", "-o", "json", "oom.log"),
    "diagnose that does not tell": ("diagnose", "vague.log"),
    "explain": ("explain", "ping"),
    "explain all": ("explain",),
    "explain of nothing": ("explain", "no-such"),
    "list": ("inventory", "list", "-i", "inventory.yml"),
    "graph": ("inventory", "graph", "-i", "inventory.yml"),
    "inventory explain": ("inventory", "explain", "-i", "inventory.yml", "node-a"),
    "import": ("inventory", "import", "hosts"),
    "render": ("render", "pass.yml", "-i", "inventory.yml", "--out", "FRESH"),
    "render --diff": ("render", "pass.yml", "-i", "inventory.yml", "--out", "FRESH", "--diff"),
    "collect": ("collect", "-i", "inventory.yml", "--out", "FRESH.tar.gz"),
    "ps -o json": ("ps", "-i", "inventory.yml", "-o", "json"),
    **{f"{name} of no job": (name, "20260101", "-i", "inventory.yml") for name in ("logs", "attach", "stop", "clean")},
    "report": ("report", "run", "--out", "FRESH.html"),
    "report of two": ("report", "run", "run", "--out", "FRESH.html"),
    "report of nothing": ("report", "no-such"),
    "attach of no run": ("attach", "-i", "inventory.yml", "--run-dir", "work"),
    "init of a host that is none": ("inventory", "init", "127.0.0.1:1", "--out", "FRESH.yml"),
    "serve on no address": ("serve", "--listen", "nowhere"),
    "serve user list": ("serve", "user", "list", "--data", "FRESH"),
    "serve user add": ("serve", "user", "add", "ann", "--role", "viewer", "--data", "FRESH"),
    "serve user remove": ("serve", "user", "remove", "ann", "--data", "FRESH"),
    "serve user link": ("serve", "user", "link", "ann", "--data", "FRESH"),
    "serve enrol": ("serve", "enrol", "--data", "FRESH"),
    "agent enrol": ("agent", "enrol", "runbook-agent-1-x", "--dir", "FRESH"),
    "agent install": ("agent", "install", "--dir", "FRESH"),
    **{f"agent {name}": ("agent", name, "--dir", "FRESH") for name in ("run", "status", "drain")},
    "completion": ("completion", "bash"),
    "--version": ("--version",),
    "--help": ("--help",),
    "no command": (),
    "no argument": ("run",),
}
TELLERS = ("explain", "inventory", "completion", "ps", "logs", "--version", "--help")
CONDITIONS = {
    "in order": 'exec "$@"',
    "stdin closed": 'exec "$@" <&-',
    "stdout closed": 'exec "$@" >&-',
    "stderr closed": 'exec "$@" 2>&-',
    "both closed": 'exec "$@" >&- 2>&-',
    "all closed": 'exec "$@" <&- >&- 2>&-',
    "stdout full": 'exec "$@" >/dev/full',
    "stderr full": 'exec "$@" 2>/dev/full',
    "both full": 'exec "$@" >/dev/full 2>/dev/full',
    "stdout for reading": 'exec "$@" 1</dev/null',
    "ASCII": 'PYTHONIOENCODING=ascii exec "$@"',
    "Latin-1": 'PYTHONIOENCODING=latin-1 exec "$@"',
    "C": 'LC_ALL=C LANG=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 exec "$@"',
    "no HOME": 'unset HOME; exec "$@"',
    "no reader": 'exec "$@"',
    "few files": 'ulimit -n 14; exec "$@"',
    "no folder": 'mkdir gone && cd gone && rmdir ../gone && exec "$@"',
    "folder not to be written": 'cd /proc/self && exec "$@"',
    "no account": 'exec setpriv --reuid 54321 --clear-groups "$@"',
    "no account, no HOME": 'unset HOME; exec setpriv --reuid 54321 --clear-groups "$@"',
}
UNTOLD = ("stdout closed", "both closed", "all closed", "stdout full", "both full", "stdout for reading")
MISSING_FOLDER = ("no folder", "folder not to be written")


NOT_HERE = {("agent", "uninstall"): "it would stop a unit of this machine"}


def test_every_command_is_here() -> None:
    """A new one needs a row above."""
    told = {*(COMMANDS | MORE).values()}

    def leaves(of: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        below = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
        for action in below:
            for name, one in action.choices.items():
                yield from leaves(one, (*words, name))
        if not below or not below[0].required:
            yield words

    missing = {words for words in leaves(make_parser(), ()) if not any(one[: len(words)] == words for one in told)}
    assert missing == set(NOT_HERE)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Open to everybody: some of the processes are nobody's."""
    path = Path(tempfile.mkdtemp(prefix="odd-"))
    path.chmod(0o1777)  # sticky, as /tmp is: otherwise no workdir may lie in it
    inventory = INVENTORY.replace("FOLDER", str(path)).replace(
        "PYTHON", shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    )
    texts = {
        "inventory.yml": inventory,
        "other.yml": inventory.replace("/work", "/of-nobody"),  # a workdir belongs to who makes it
        "pass.yml": PLAYBOOK.replace("CODE", "3"),
        "fail.yml": PLAYBOOK.replace("CODE", "4"),
        "bad.yml": "name: x\nnodes: {a: {adress: 127.0.0.1}}\n",
        "oom.log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
        "vague.log": "Traceback (most recent call last):\n",
        "hosts": "node-a slots=2\nnode-b slots=2\n",
    }
    for name, text in texts.items():
        (path / name).write_text(text)
    write_run(path / "run", failing("firewall"))
    yield path
    shutil.rmtree(path)


def call(folder: Path, condition: str, arguments: tuple[str, ...]) -> subprocess.CompletedProcess[bytes]:
    fresh = tempfile.mkdtemp(dir=folder)
    Path(fresh).chmod(0o1777)
    words = [
        str(folder / word)
        if (folder / word).is_file() and condition in MISSING_FOLDER
        else word.replace("FRESH", f"{fresh}/new")
        for word in arguments
    ]
    if "account" in condition:
        words = [word.replace("inventory.yml", "other.yml") for word in words]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LC_", "LANG"))}
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "LANG": "C.UTF-8"}
    command = ["sh", "-c", CONDITIONS[condition], "sh", sys.executable, "-m", "runbook", *words]
    if condition != "no reader":
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120, check=False)
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, stdout=write, stderr=subprocess.PIPE, timeout=120, check=False
        )
    finally:
        os.close(write)


@functools.cache
def code_in_order(folder: Path, arguments: tuple[str, ...]) -> int:
    return call(folder, "in order", arguments).returncode


def wanting(folder: Path, condition: str) -> str | None:
    """Why this cannot be tried here; None where it can."""
    if "full" in condition and not Path("/dev/full").exists():
        return "there is no /dev/full here"
    if "account" not in condition:
        return None
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("setpriv") is None:
        return "only root can become a user without an account"
    importable = ["setpriv", "--reuid", "54321", "--clear-groups", sys.executable, "-c", "import runbook.cli.main"]
    done = subprocess.run(importable, env={"PYTHONPATH": str(ROOT)}, cwd=folder, capture_output=True, check=False)
    return None if done.returncode == 0 else "nobody else may read this checkout or its Python"


def look(folder: Path, condition: str, arguments: tuple[str, ...]) -> None:
    if why := wanting(folder, condition):
        pytest.skip(why)
    done = call(folder, condition, arguments)
    said = (done.stdout or b"").decode("utf-8", "replace") + done.stderr.decode("utf-8", "replace")
    assert f'File "{ROOT}' not in said
    assert "Exception ignored" not in said
    assert "This is a bug" not in said
    code = code_in_order(folder, arguments)
    if condition == "few files" and arguments[:1] and arguments[0] in ("run", "collect", "ps"):
        # So few that a node cannot be asked, or is told of: a verdict or not, and the reason.
        assert done.returncode in (code, 1, 3)
        assert done.returncode == code or "open-files-limit" in said or "files" in said
        return
    lost = condition in ("stdout full", "both full", "stdout for reading")
    if lost and code == 0 and (arguments[0] in TELLERS or "--diff" in arguments):
        code = 2  # its text was all there was to it
    assert (done.returncode, said) == (code, said)
    if condition in UNTOLD and code_in_order(folder, arguments) == 0 and not condition.startswith(("both", "all")):
        assert b"standard output " in done.stderr


@pytest.mark.parametrize(("name", "condition"), one_in(67, itertools.product(COMMANDS, CONDITIONS), thorough=3))
def test_the_code_stands(folder: Path, condition: str, name: str) -> None:
    look(folder, condition, COMMANDS[name])


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "condition"), list(itertools.product(MORE, CONDITIONS))[::19])
def test_the_code_of_every_command_stands(folder: Path, condition: str, name: str) -> None:
    look(folder, condition, MORE[name])


def test_the_codes_to_expect(folder: Path) -> None:
    """The table above compares with these: they are what the README promises."""
    told = {name: code_in_order(folder, arguments) for name, arguments in COMMANDS.items()}
    assert told == {"run": 0, "run that fails": 1, "lint that finds": 1, "diagnose": 0, "ps": 0, "no such file": 2}


def test_nothing_of_ours_takes_the_place_of_a_closed_stream(folder: Path) -> None:
    """What a library writes to descriptor 2 must not land in a file that we opened meanwhile."""
    done = call(folder, "all closed", ("run", "pass.yml", "-i", "inventory.yml", "--run-dir", "kept"))
    assert done.returncode == 0
    lines = (folder / "kept" / "events.jsonl").read_text().splitlines()
    assert lines
    assert all(line.startswith('{"event"') for line in lines)


def test_an_error_without_standard_error_is_said_on_standard_output(folder: Path) -> None:
    done = call(folder, "stderr closed", ("run", "no-such.yml"))
    assert (done.returncode, b"no playbook" in done.stdout) == (2, True)


@pytest.mark.parametrize("command", ["diagnose", "inventory import"])
def test_closed_standard_input_holds_nothing(folder: Path, command: str) -> None:
    """And nothing is not healthy."""
    arguments = (*command.split(), "-")
    done = call(folder, "stdin closed", arguments)
    assert done.returncode in (1, 2)
    assert b"Traceback" not in done.stderr
    assert b"healthy" not in done.stdout


@pytest.mark.parametrize(
    ("command", "limit"),
    one_in(
        3,
        itertools.product(("ps -i inventory.yml", "run pass.yml -i inventory.yml --run-dir FRESH"), (5, 6, 8, 10, 12)),
    ),
)
def test_too_few_files_are_told_as_that(folder: Path, command: str, limit: int) -> None:
    fresh = tempfile.mkdtemp(dir=folder)
    script = f"ulimit -n {limit}; exec {sys.executable} -m runbook {command.replace('FRESH', fresh)}"
    done = subprocess.run(["sh", "-c", script], cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, timeout=60, check=False)  # fmt: skip
    said = done.stdout + done.stderr
    assert b"Traceback" not in said
    assert b"bug of runbook" not in said
    assert done.returncode in (0, 1, 3), said
    assert done.returncode == 0 or b"files" in said or b"gave no answer" in said, said
