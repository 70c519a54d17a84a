"""A rank is killed on a node that is too busy to say so: whoever lost it is heard first, and is not to blame."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from lab import Lab, runbook_finish, runbook_start

from .test_launch import EXAMPLE, nothing_left, pids, playbook, started

pytestmark = [pytest.mark.lab, pytest.mark.torch]


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        made.work_file("train.py", EXAMPLE.read_text())
        yield made


@pytest.mark.thorough
def test_a_killed_rank_is_the_cause_though_the_other_is_heard_first(lab: Lab) -> None:
    inventory = lab.inventory()
    file = playbook(lab, "--steps, 2000, --pause, '0.05'")
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab)
    host = lab["node-b"]
    keepers = [pid for pid, command in host.processes(lab.user) if "keeper.py" in command]
    for pid in keepers:
        host.signal(pid, signal.SIGSTOP)
    host.run(f"kill -9 {pids(host, '[t]rain.py')[-1]}", "root")
    deadline = time.monotonic() + 60
    while any("train.py" in command and "keeper.py" not in command for _, command in lab["node-a"].processes(lab.user)):
        assert time.monotonic() < deadline, "node-a did not notice"
        time.sleep(0.1)
    time.sleep(3)  # longer than the ends of others are waited for
    for pid in keepers:
        host.signal(pid, signal.SIGCONT)
    done = runbook_finish(run)
    assert done.returncode == 1, done
    assert done.json()["causes"][0] == "rank-killed", done
    guilty = [one["node"] for one in done.json()["stages"][-1]["outcomes"] if one["verdict"] == "fail"]
    assert guilty == ["node-b"], done
    nothing_left(lab)
