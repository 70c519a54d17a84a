"""What a node reads of its own counters: from this machine's files, which a real quota changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.cpu import limited_cpu
from lab.processes import wait_until

import runbook.node

ROOT = Path(runbook.node.__file__).parents[2]


def read(**order: Any) -> dict[str, Any]:
    """What the program tells, run as on a node."""
    given = json.dumps({"interfaces": ["lo"], "gpus": [], "deadline_s": 1, "pid": None, **order})
    code = f"import json; from runbook.node import counters; print(json.dumps(counters.look(json.loads({given!r}))))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_this_machine_tells_of_its_interface_and_of_tcp() -> None:
    told = read()
    assert told["interfaces"]["lo"]["rx_errors"] == 0
    assert told["interfaces"]["lo"]["rx_packets"] is not None
    assert told["tcp"]["OutSegs"] > 0
    assert told["gpus"] is None
    assert told["xids"] is None


def test_an_interface_that_is_not_there_is_not_read() -> None:
    assert set(read(interfaces=["none0"])["interfaces"]["none0"].values()) == {None}


@pytest.mark.lab
def test_a_cpu_quota_shows_in_the_group_of_what_a_shell_started() -> None:
    spin = [sys.executable, "-S", "-c", "while True: pass"]
    shell = subprocess.Popen(["/bin/sh", "-c", '"$@"; exit 0', "sh", *spin])
    try:
        inner = wait_until("the shell started it", lambda: children(shell.pid))
        with limited_cpu(inner, 0.05):
            before = read(pid=shell.pid)["machine"]["quota_us"]
            wait_until("more is held back", lambda: read(pid=shell.pid)["machine"]["quota_us"] > before)
    finally:
        for pid in children(shell.pid):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        shell.kill()
        shell.wait()


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
