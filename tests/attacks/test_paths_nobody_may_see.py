"""Paths that may not be looked at, and names that are too long: a message and exit code 2, never a crash or `clean`."""

from __future__ import annotations

import io
import json
import os
import resource
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import pytest

from runbook.cli.main import main

from .users import ATTACKER, common

__all__ = ["common"]

PAIR = "nodes:\n  node-a: {address: 10.0.0.1}\n  node-b: {address: 10.0.0.2}\n"
PLAYBOOK = "inventory: locked/i.yml\nstages:\n- check: ping\n"
LONG = "x" * 300


def said(arguments: list[str]) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as done:
            code = int(done.code or 0)
    return code, out.getvalue() + err.getvalue()


def said_to(uid: int, arguments: list[str]) -> tuple[int, str]:
    """The same as another user, who may have no right to read the modules: so they are loaded before."""
    said(arguments)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            os.write(theirs, json.dumps(said(arguments)).encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as file:
        code, text = json.loads(file.read())
    os.waitpid(pid, 0)
    return code, text


@pytest.fixture
def here(common: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Anybody's folder, with `locked` in it, which only root may enter, and `listed`, which others may only list."""
    for name, mode in (("locked", 0o700), ("listed", 0o744)):
        folder = common / name
        (folder / "in").mkdir(parents=True)
        (folder / "i.yml").write_text(PAIR)
        (folder / "events.jsonl").write_text("")
        (folder / "in" / "a.yml").write_text(PAIR)
        folder.chmod(mode)
    (common / "p.yml").write_text(PLAYBOOK)
    (common / "hosts").write_text("gn1 slots=8\n")
    (common / "links").mkdir()
    (common / "links" / "i.yml").symlink_to(common / "locked" / "i.yml")
    monkeypatch.setenv("XDG_STATE_HOME", str(common / "state"))
    monkeypatch.chdir(common)
    return common


needs_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="becomes another user")


@needs_root
@pytest.mark.parametrize(
    "command",
    [
        "lint listed",
        "lint locked",
        "lint links",
        "lint p.yml",
        "report locked",
        "report listed",
        "collect --run-dir locked",
        "collect --run-dir listed",
        "collect -i links/i.yml --out locked/x.tgz",
        "collect -i hosts",
        "inventory import hosts --out locked/x.yml",
        "inventory import hosts --out listed/x.yml",
        "inventory import hosts --out x.yml",
        "inventory init gn1 --out locked/x.yml",
        "inventory init gn1 --out x.yml",
        "inventory list -i locked/i.yml",
        "render p.yml --out locked/x",
    ],
)
def test_what_may_not_be_looked_at_is_told(here: Path, command: str) -> None:
    code, text = said_to(ATTACKER, command.split())
    assert code in (1, 2), text
    assert "error" in text
    assert "runbook crashed" not in text


@needs_root
def test_what_stands_above_need_not_be_seen(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "locked" / "in").chmod(0o755)
    monkeypatch.chdir(here / "locked" / "in")
    code, text = said_to(ATTACKER, ["lint", "a.yml"])
    assert (code, "clean: 1 file" in text) == (0, True), text


@pytest.mark.parametrize(
    "command",
    [
        f"lint {LONG}.yml",
        f"report {LONG}",
        f"collect --run-dir {LONG}",
        f"collect -i p.yml --out {LONG}",
        f"inventory import hosts --out {LONG}",
        f"inventory init gn1 --out {LONG}",
        f"inventory list -i {LONG}",
        f"render p.yml --out {LONG}",
        f"inventory import hosts --out {LONG}/{LONG}",
    ],
)
def test_a_name_that_is_too_long_is_told(here: Path, command: str) -> None:
    code, text = said(command.split())
    assert (code, "runbook crashed" in text) == (2, False), text


def test_no_draft_is_left_where_a_file_cannot_be_written_whole(here: Path) -> None:
    """As on a full disk."""
    before, limit = sorted(here.iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limit[1]))
    try:
        code, text = said(["inventory", "import", "hosts", "--out", "x.yml"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (code, "--out x.yml: File too large" in text) == (2, True), text
    assert sorted(here.iterdir()) == before
