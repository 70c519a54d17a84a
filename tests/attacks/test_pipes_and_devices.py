"""What lies where a file is looked for, and is none: nothing waits for it, and nothing reads it without an end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from profiles import one_in
from report.varied import failing, write_run

ROOT = Path(__file__).parents[2]
HOLE = 200 << 30
"""Bytes of a file that holds nothing: reading it whole would take all memory."""


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HOLE)


def _linked_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(os.path.relpath(path))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


PUT: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a pipe": _linked_pipe,
    "a folder": Path.mkdir,
    "a link to itself": _loop,
    "a hole of 200 GiB": _sparse,
    "a socket": _socket,
}
INVENTORY = (
    "name: x\nnodes: {node-a: {address: 127.0.0.1, connection: local}}\nnetwork: {interface: lo}\n"
    f"defaults: {{python: {sys.base_prefix}/bin/python3}}\n"  # without torch, which takes seconds to import
)
PLACES: dict[str, tuple[str, tuple[str, ...]]] = {
    "settings of lint": (".runbook-lint.yml", ("lint", ".")),
    "pyproject.toml": ("pyproject.toml", ("lint", ".")),
    "an inventory beside": ("inventories/y.yml", ("lint", ".")),
    "the inventory of a playbook": ("linked.yml", ("lint", ".")),
    "the playbook's inventory, to run": ("linked.yml", ("run", "playbooks/p.yml", "-C")),
    "the only inventory": ("other.yml", ("inventory", "list")),
    "the result of a run, diagnosed": ("run/result.json", ("diagnose", "run")),
    "the events of a run, diagnosed": ("run/events.jsonl", ("diagnose", "run")),
    "a log, diagnosed": ("run/logs/rank-0.out", ("diagnose", "run")),
    "the logs' folder, diagnosed": ("run/logs", ("diagnose", "run")),
    "the result of a run, reported": ("run/result.json", ("report", "run")),
    "the events of a run, reported": ("run/events.jsonl", ("report", "run")),
    "a log, reported": ("run/logs/rank-0.out", ("report", "run")),
    "a stack, reported": ("run/hang/rank-0.node-a.stack", ("report", "run")),
    "the report's own place": ("run/report.html", ("report", "run")),
    "the events of a run, attached": ("run/events.jsonl", ("attach", "-i", "inventories/x.yml", "--run-dir", "run")),
    "the result of a run, collected": (
        "run/result.json",
        ("collect", "-i", "inventories/x.yml", "--run-dir", "run", "--out", "made.tar.gz"),
    ),
    "the events of a run, collected": (
        "run/events.jsonl",
        ("collect", "-i", "inventories/x.yml", "--run-dir", "run", "--out", "made.tar.gz"),
    ),
    "a log, collected": (
        "run/logs/rank-0.out",
        ("collect", "-i", "inventories/x.yml", "--run-dir", "run", "--out", "made.tar.gz"),
    ),
    "a script that was rendered": (
        "rendered/node-a/launch.sh",
        ("render", "playbooks/l.yml", "-i", "inventories/x.yml"),
    ),
    "known_hosts": (".ssh/known_hosts", ("ps", "-i", "inventories/ssh.yml")),
    "the configuration of ssh": (".ssh/config", ("ps", "-i", "inventories/ssh.yml")),
}


def prepared(folder: Path) -> None:
    for name in ("inventories", "playbooks", ".ssh", "rendered/node-a"):
        (folder / name).mkdir(parents=True)
    (folder / ".ssh").chmod(0o700)
    (folder / "inventories" / "x.yml").write_text(INVENTORY)
    (folder / "inventories" / "ssh.yml").write_text(
        "name: x\nnodes: {node-a: {address: 127.0.0.1, ssh: {port: 1, connect_timeout: 1s}}}\n"
    )
    (folder / "playbooks" / "p.yml").write_text("name: p\ninventory: ../linked.yml\nstages: [{shell: 'true'}]\n")
    (folder / "playbooks" / "l.yml").write_text("name: l\nstages: [{launch: {command: [python, x.py]}}]\n")
    write_run(folder / "run", failing("firewall"), {"logs/rank-0.out": "x\n", "hang/rank-0.node-a.stack": "x\n"})


LIMIT_MB = 2000
"""Of address space: much less than what the hole holds, and enough for any command."""


def tried(folder: Path, place: str, put: str) -> None:
    name, words = PLACES[place]
    prepared(folder)
    path = folder / name
    if path.is_dir():
        for one in path.iterdir():
            one.unlink()
        path.rmdir()
    path.unlink(missing_ok=True)
    PUT[put](path)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    command = ["sh", "-c", f'ulimit -v {LIMIT_MB << 10}; exec "$@"', "sh", sys.executable, "-m", "runbook", *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
    )
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode in (0, 1, 2, 3), said
    assert "Traceback" not in said
    assert "MemoryError" not in said


CASES = [(place, put) for place in PLACES for put in PUT]


@pytest.mark.parametrize(("place", "put"), one_in(31, CASES, thorough=2))
def test_what_is_no_file(place: str, put: str, tmp_path: Path) -> None:
    tried(tmp_path, place, put)


@pytest.mark.parametrize("depth", [100_000])
@pytest.mark.parametrize(
    "text", ["a = {deep}", "[{deep}]", "a.{dotted} = 1", "a = {{dotted} = 1}", "[tool.runbook.lint]\nignore = {deep}"]
)
def test_toml_that_is_too_deep(text: str, depth: int, tmp_path: Path) -> None:
    prepared(tmp_path)
    (tmp_path / "pyproject.toml").write_text(
        text.replace("{deep}", "[" * depth).replace("{dotted}", "a." * depth + "a")
    )
    command = [
        "sh",
        "-c",
        f'ulimit -v {LIMIT_MB << 10}; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "runbook",
        "lint",
        "inventories/x.yml",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode in (0, 1, 2), done.stderr[-2000:]
    assert "Traceback" not in done.stderr
