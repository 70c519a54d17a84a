"""The connections of ranks, of those that end with their run and of those that outlive it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from runbook.node import rank_connections

DIALS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
print(flush=True)
input()
"""


@pytest.mark.parametrize("tag", ["RUNBOOK_RUN_ID", "RUNBOOK_JOB"])
def test_also_the_ranks_of_a_job_that_outlives_its_run_are_seen(tag: str) -> None:
    """A supervisor takes the tags of its run from what it spares; a keeper gives its rank those of the job."""
    job = f"job-{tag}-{os.getpid()}"  # no other test's, which may run beside this one
    tags = {"RANK": "3", tag: job}
    command = [sys.executable, "-S", "-c", DIALS]
    with subprocess.Popen(command, env=tags, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        found = rank_connections.look({"run_id": job})
        other = rank_connections.look({"run_id": f"{job}-other"})
        process.communicate(b"\n")
    assert [one["rank"] for one in found["listening"]] == [3]
    assert {(one["rank"], one["open"]) for one in found["connections"]} == {(3, True)}
    assert other == {"connections": [], "listening": [], "settings": {}}
