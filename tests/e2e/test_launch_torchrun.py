"""`launcher: torchrun` inside a launch stage: every rank has its own files, its own cause, and nothing outlives the launcher."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Lab
from lab.cli import CliResult, runbook_cli, runbook_finish, runbook_start

pytestmark = [pytest.mark.lab, pytest.mark.torch]
PROGRAM = """
import os, sys, time
rank = os.environ["RANK"]
print("out", rank, flush=True)
print("err", rank, file=sys.stderr, flush=True)
if "import" in sys.argv and rank == "3":
    import nothing_like_this
if "wait" in sys.argv or "import" in sys.argv:
    time.sleep(120)
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        made.work_file("train.py", PROGRAM)
        yield made


def arguments(lab: Lab, word: str) -> tuple[str | Path, ...]:
    path = lab.tmp / "train.yml"
    launch = f"{{command: [train.py, {word}], launcher: torchrun, workdir: ~/work, grace: 5s, retries: 0}}"
    path.write_text(f"name: train\nstages:\n  - {{name: train, launch: {launch}}}\n")
    inventory = lab.inventory(nodes={"node-a": {"processes": 1}, "node-b": {"processes": 3}})
    return ("run", path, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")


def guilty(done: CliResult) -> tuple[str, str, dict[str, Any]]:
    told = done.json()
    [outcome] = [one for one in told["stages"][-1]["outcomes"] if one["verdict"] == "fail"]
    return told["causes"][0], outcome["node"], outcome["findings"][0]


def wait_for(lab: Lab, names: list[str]) -> None:
    deadline = time.monotonic() + 90
    files = [lab.tmp / "run/logs/attempt-01" / name for name in names]
    while not all(file.is_file() and file.read_text() for file in files):
        assert time.monotonic() < deadline, f"nothing in {names}"
        time.sleep(0.1)


def nothing_left(lab: Lab) -> None:
    for host in lab:
        host.wait_empty(lab.user)


@pytest.mark.thorough
def test_every_rank_has_its_own_files(lab: Lab) -> None:
    done = runbook_cli(lab, *arguments(lab, "once"), timeout=120)
    assert done.returncode == 0, done
    logs = lab.tmp / "run/logs/attempt-01"
    for rank, name in enumerate(["node-a.l0", "node-b.l0", "node-b.l1", "node-b.l2"]):
        for end in ("out", "err"):
            assert f"{end} {rank}\n" in (logs / f"rank-{rank:05d}.{name}.{end}").read_text()
    nothing_left(lab)


@pytest.mark.thorough
def test_the_rank_that_failed_is_named_and_not_its_launcher(lab: Lab) -> None:
    done = runbook_cli(lab, *arguments(lab, "import"), timeout=120)
    cause, node, finding = guilty(done)
    assert (cause, node) == ("program-error", "node-b"), done
    assert "rank 3 on node-b" in finding["says"]
    assert "nothing_like_this" in finding["says"]
    assert not any("elastic" in line for line in finding["evidence"]), finding
    nothing_left(lab)


@pytest.mark.thorough
def test_a_killed_launcher_leaves_no_rank(lab: Lab) -> None:
    run = runbook_start(lab, *arguments(lab, "wait"))
    wait_for(lab, [f"rank-0000{rank}.node-b.l{rank - 1}.out" for rank in (1, 2, 3)])
    host = lab["node-b"]
    [launcher] = [
        pid for pid, line in host.processes(lab.user) if "-m torch.distributed.run" in line and "keeper" not in line
    ]
    host.signal(launcher, signal.SIGKILL)
    done = runbook_finish(run, timeout=90)
    cause, node, finding = guilty(done)
    assert (cause, node) == ("rank-killed", "node-b"), done
    assert "the launcher of ranks 1-3" in finding["says"]
    nothing_left(lab)


def test_a_killed_rank_is_named(lab: Lab) -> None:
    run = runbook_start(lab, *arguments(lab, "wait"))
    wait_for(lab, [f"rank-0000{rank}.node-b.l{rank - 1}.out" for rank in (1, 2, 3)])
    host = lab["node-b"]
    ranks = [pid for pid, line in host.processes(lab.user) if "train.py wait" in line and "-m torch" not in line]
    host.signal(
        [pid for pid in ranks if b"\0RANK=2\0" in Path(f"/proc/{pid}/environ").read_bytes()][-1], signal.SIGKILL
    )
    cause, node, finding = guilty(runbook_finish(run, timeout=90))
    assert (cause, node) == ("rank-killed", "node-b")
    assert "rank 2 on node-b" in finding["says"]
    nothing_left(lab)
