"""examples/try_connection.py, started by launch scripts as people start it: who comes, and who is missing."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from .specs import ranks, written

EXAMPLE = Path(__file__).parents[2] / "examples/try_connection.py"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A launch script of three ranks for any command, with a port that is free."""
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "3", "RUNBOOK_BACKEND": "gloo"}
    return written(tmp_path, "sh", command=None, environment=environment, processes=ranks(3))


def start(script: Path, arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(["sh", str(script), *arguments], stdout=subprocess.PIPE, text=True)


def test_ranks_that_all_come_add_up(script: Path) -> None:
    with start(script, [sys.executable, str(EXAMPLE), "--mib", "1"]) as job:
        said, _ = job.communicate(timeout=120)
    host = socket.gethostname()
    assert job.returncode == 0
    assert f"rank 0: all 3 have come: 0 on {host}, 1 on {host}, 2 on {host}" in said.splitlines()
    assert said.count("KiB is right") == 9


@pytest.mark.thorough
def test_who_is_missing_is_named_by_rank_0_and_told_to_those_who_came(script: Path) -> None:
    line = 'case $RANK in 2) exec sleep 120 ;; *) exec "$@" ;; esac'
    with start(script, ["sh", "-c", line, "sh", sys.executable, str(EXAMPLE), "--patience", "20"]) as job:
        said, _ = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "rank 0: waits for rank 2" in said.splitlines()
    assert {"rank 0: FAILED: rank 2 never came", "rank 1: FAILED: rank 0 says that not all came"} & {*said.splitlines()}


@pytest.mark.thorough
def test_a_master_that_is_not_there_is_said_to_refuse(script: Path) -> None:
    line = 'case $RANK in 1) exec "$@" ;; esac'
    with start(script, ["sh", "-c", line, "sh", sys.executable, str(EXAMPLE), "--patience", "1"]) as job:
        said, _ = job.communicate(timeout=120)
    assert job.returncode == 1
    assert "in time: refused: nobody listens there yet" in said
