"""Other users of this machine for tests that run as root: numbers that nobody has, a folder that they can reach, a Python."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest


def _python() -> str | None:
    """One that every user may start, and that this project runs on."""
    old = "import sys; sys.exit(sys.version_info < (3, 10))"
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(path).exists() and subprocess.run([path, "-c", old], check=False).returncode == 0:
            return path
    return None


PYTHON = _python()

needs_users = pytest.mark.skipif(
    os.geteuid() != 0 or PYTHON is None or shutil.which("setpriv") is None,
    reason="becomes other users: needs root, setpriv and a Python from 3.10 on that every user may start",
)


def unused_uid(above: int) -> int:
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(above, 65000) if uid not in taken)


VICTIM, ATTACKER = unused_uid(58100), unused_uid(58200)


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder below /tmp that everybody may enter: pytest's own are for one user."""
    folder = Path(tempfile.mkdtemp(prefix="runbook-attack-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def folder_of(uid: int, path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    os.chown(path, uid, uid)
    path.chmod(mode)
    return path


def as_user(uid: int, argv: Sequence[str | Path]) -> list[str]:
    """The command that starts a program as this user, in no other group."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--", *map(str, argv)]


def run_as(uid: int, argv: Sequence[str | Path], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        as_user(uid, argv), capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **more}, cwd="/"
    )


def python_of(uid: int, home: Path) -> Path:
    """An interpreter that starts as this user, so that a node on this machine is his login."""
    path = home / "python"
    command = " ".join(as_user(uid, [str(PYTHON)]))
    path.write_text(f'#!/bin/sh\nHOME={home} exec {command} "$@"\n')
    path.chmod(0o755)
    return path


def kept(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder, its owner, mode and bytes: to see that nothing has changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        data = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
        found[str(path)] = (status.st_uid, status.st_mode, data)
    return found
