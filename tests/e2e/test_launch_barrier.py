"""`barrier: file`: nodes that meet in a shared folder, without a controller that holds them all."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Host, Lab
from lab.cli import CliResult, runbook_cli, runbook_finish, runbook_start

pytestmark = pytest.mark.lab
PROGRAM = "import os, time\nprint('rank', os.environ['RANK'], flush=True)\ntime.sleep(1)\n"
FOLDER = "/shared/meet"


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(2) as made:
        made.work_file("train.py", PROGRAM)
        yield made


def arguments(lab: Lab, more: str = "start_timeout: 3s") -> tuple[str | Path, ...]:
    path = lab.tmp / "meet.yml"
    launch = f"{{command: [train.py], workdir: ~/work, grace: 2s, barrier: file, barrier_folder: {FOLDER}, {more}}}"
    path.write_text(f"name: meet\nstages:\n  - {{name: train, launch: {launch}}}\n")
    inventory = lab.inventory(defaults={"processes": 2, "python": lab.python_without_torch})
    return ("run", path, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")


def blamed(done: CliResult) -> tuple[str, str, str]:
    """The root cause, the node that has it, and what is said of it."""
    told = done.json()
    for outcome in told["stages"][-1]["outcomes"]:
        for finding in outcome["findings"]:
            if finding["cause"] == told["causes"][0]:
                return finding["cause"], outcome["node"], finding["says"]
    raise AssertionError(str(done))


def left(lab: Lab) -> list[str]:
    return [path.name for path in lab.shared.rglob("*.attempt-*")]


def test_all_meet_and_nothing_stays_in_the_folder(lab: Lab) -> None:
    done = runbook_cli(lab, *arguments(lab, "start_timeout: 30s"))
    assert done.returncode == 0, done
    assert sorted(path.read_text() for path in (lab.tmp / "run/logs/attempt-01").glob("*.out")) == [
        f"rank {rank}\n" for rank in range(4)
    ]
    assert left(lab) == []


def test_a_folder_that_is_not_shared_is_told_as_such(lab: Lab) -> None:
    lab["node-b"].run("umount /shared", "root")
    done = runbook_cli(lab, *arguments(lab))
    cause, node, says = blamed(done)
    assert (done.returncode, cause, node) == (1, "ranks-missing", "node-b"), done
    assert "not shared" in says
    assert f"{FOLDER} on node-b" in says
    assert left(lab) == []


def test_a_folder_that_a_node_cannot_write_to(lab: Lab) -> None:
    lab["node-b"].run("mount -o remount,bind,ro /shared", "root")
    cause, node, says = blamed(runbook_cli(lab, *arguments(lab)))
    assert (cause, node) == ("ranks-missing", "node-b")
    assert "Read-only file system" in says


def test_a_node_that_never_comes_is_named(lab: Lab) -> None:
    """Its keepers hang before they could say that they are there."""
    run = runbook_start(lab, *arguments(lab))
    stopped = _stop_keepers(lab["node-b"], 2)
    done = runbook_finish(run, timeout=90)
    cause, node, says = blamed(done)
    assert (cause, node) == ("ranks-missing", "node-b"), done
    assert "node-b" in says
    lab["node-b"].wait_empty(lab.user)
    assert stopped


def _stop_keepers(host: Host, count: int) -> list[int]:
    stopped: list[int] = []
    deadline = time.monotonic() + 60
    while len(stopped) < count:
        assert time.monotonic() < deadline, "no keeper came"
        for pid, line in host.processes(host.lab.user):
            if "keeper.py" in line and pid not in stopped:
                os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
    return stopped


# The barrier itself, on this machine.


@pytest.fixture
def keeper(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "runbook" / "node"))
    import keeper as module  # type: ignore[import-not-found]

    yield module
    sys.modules.pop("keeper", None)


def order(folder: Path, node: str, **more: object) -> dict[str, object]:
    given = {"folder": str(folder), "token": "new", "node": node, "nodes": ["a", "b"], "first": True, "timeout_s": 1.0}
    return {**given, "owner": node == "a", **more}


@pytest.mark.parametrize("stale", ["go", "abort", "b.ready"])
def test_what_an_earlier_attempt_left_is_not_believed(keeper: Any, tmp_path: Path, stale: str) -> None:
    (tmp_path / stale).write_text(json.dumps({"token": "old", "why": "an old reason"}))
    said = keeper.Barrier(order(tmp_path, "a")).pass_through()
    assert said == "b did not come within 1 s"


def test_a_stale_go_starts_nobody(keeper: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "OWNER_TIMEOUT_S", 0.5)
    (tmp_path / "go").write_text(json.dumps({"token": "old"}))
    assert "neither" in keeper.Barrier(order(tmp_path, "b")).pass_through()


def test_all_pass_once_the_last_has_come(keeper: Any, tmp_path: Path) -> None:
    said: dict[str, object] = {}

    def come(node: str) -> None:
        said[node] = keeper.Barrier(order(tmp_path, node, timeout_s=20.0)).pass_through()

    threads = [threading.Thread(target=come, args=(node,)) for node in ("a", "b")]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join(30)
    assert said == {"a": None, "b": None}
