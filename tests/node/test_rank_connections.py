"""The connections of ranks, of those that end with their run and of those that outlive it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runbook.node import rank_connections
from runbook.node.supervisor import Pipe, Program

DIALS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print(flush=True)
input()
"""


@pytest.mark.parametrize("detached", [False, True])
def test_also_the_ranks_of_a_job_that_outlives_its_run_are_seen(detached: bool) -> None:
    """A supervisor takes the tags of its run from what it spares; a keeper gives its rank those of the job."""
    asked: dict[str, Any] = {"id": 1, "argv": [sys.executable, "-c", DIALS], "cwd": "/"}
    frame = {**asked, "spare": detached, "env": {"RANK": "3", "RUNBOOK_JOB": "job-7"}}
    pipe = cast(Pipe, SimpleNamespace(send=lambda *_: None))
    program = Program(pipe, {"RUNBOOK_RUN_ID": "job-7", "RUNBOOK_NODE": "a"}, None, frame)
    with cast("subprocess.Popen[bytes]", program.process) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        found = rank_connections.look({"run_id": "job-7"})
        process.communicate(b"\n")
    assert [one["rank"] for one in found["listening"]] == [3]
    assert [one["open"] for one in found["connections"]] == [True]
    assert rank_connections.look({"run_id": "job-8"}) == {"connections": [], "listening": [], "settings": {}}
