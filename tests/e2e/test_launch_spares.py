"""A node is lost in the middle of a training: a spare takes its place, and the training goes on from its checkpoint."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lab import Host, Lab, LabError
from lab.cli import runbook_cli, runbook_finish, runbook_start

from .test_launch import EXAMPLE, nothing_left, started

pytestmark = [pytest.mark.lab, pytest.mark.torch]

CHECKS = """\
  - check: ping
  - check: port
  - check: firewall
"""
PLAYBOOK = """\
name: train
stages:
{checks}  - name: train
    launch:
      command: [train.py, --steps, '{steps}', --pause, '{pause}', --checkpoint, /shared/model.pt, --every, '5']
      workdir: ~/work
      grace: 5s
      retries: 1
      spares: [node-c]
"""


@pytest.fixture
def lab() -> Iterator[Lab]:
    with Lab(3) as made:
        made.work_file("train.py", EXAMPLE.read_text())
        yield made


def playbook(lab: Lab, steps: int, pause: float, checks: str = CHECKS) -> Path:
    path = lab.tmp / "train.yml"
    path.write_text(PLAYBOOK.format(steps=steps, pause=pause, checks=checks))
    return path


def power_off(host: Host) -> None:
    host.cut()
    for pid, _ in host.processes():
        with suppress(LabError):  # it has ended meanwhile
            host.signal(pid, signal.SIGKILL)
    host.stop_sshd(sessions=True)


def trained(folder: Path) -> list[int]:
    text = (folder / "rank-00000.node-a.l0.out").read_text()
    return [int(found) for found in re.findall(r"^step (\d+) ", text, re.MULTILINE)]


@pytest.mark.thorough
def test_a_spare_takes_the_place_of_a_lost_node_and_goes_on_from_the_checkpoint(lab: Lab) -> None:
    inventory = lab.inventory(defaults={"processes": 1})
    run = runbook_start(lab, "run", playbook(lab, 60, 0.2), "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab, "step 12 ", timeout=150)
    power_off(lab["node-b"])
    done = runbook_finish(run, timeout=180)
    assert done.returncode == 0, done
    stage = done.json()["stages"][-1]
    told = {one["node"]: one for one in stage["outcomes"]}
    assert {name: one["verdict"] for name, one in told.items()} == {
        "node-a": "pass",
        "node-b": "skip",
        "node-c": "pass",
    }
    assert "node-c took its place" in told["node-b"]["proof"]
    assert any("took the place of node-b" in text for text in told["node-c"]["warnings"])
    assert "2 ranks ended with code 0" in told["node-c"]["proof"]
    assert "at attempt 2" in told["node-c"]["proof"]
    logs = lab.tmp / "run" / "logs"
    first, second = trained(logs / "attempt-01"), trained(logs / "attempt-02")
    assert second[-1] == 59
    assert 0 < second[0] <= first[-1] + 1
    assert second[0] % 5 == 0
    assert (logs / "attempt-02" / "rank-00001.node-c.l0.out").exists()
    nothing_left(lab)


@pytest.mark.thorough
@pytest.mark.parametrize("checks", ["", CHECKS])
def test_a_spare_that_does_not_pass_takes_nobodys_place(lab: Lab, checks: str) -> None:
    """It passed at first, or nothing was asked; its ports are blocked when it is needed."""
    inventory = lab.inventory(defaults={"processes": 1})
    file = playbook(lab, 400, 0.2, checks)
    run = runbook_start(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json")
    started(lab, "step 7 ", timeout=150)
    lab["node-c"].firewall(
        "table inet f { chain i { type filter hook input priority 0; tcp dport 1024-65535 drop; }; }"
    )
    power_off(lab["node-b"])
    done = runbook_finish(run, timeout=180)
    assert done.returncode in (1, 3), done
    told = {one["node"]: one for one in done.json()["stages"][-1]["outcomes"]}
    assert told["node-c"]["verdict"] == "skip"
    assert "could not take over: firewall: " in told["node-c"]["proof"]
    evidence = " ".join(line for one in told.values() for finding in one["findings"] for line in finding["evidence"])
    assert "the spare node-c could not take over" in evidence
    nothing_left(lab)


@pytest.mark.thorough
def test_a_spare_has_no_rank_and_is_not_in_the_world(lab: Lab) -> None:
    inventory = lab.inventory(defaults={"processes": 1})
    file = playbook(lab, 3, 0.0)
    out = lab.tmp / "scripts"
    rendered = runbook_cli(lab, "render", file, "-i", inventory, "--out", out)
    assert rendered.returncode == 0, rendered
    assert "WORLD_SIZE=2" in (out / "node-a" / "launch.sh").read_text().replace("'", "")
    assert not (out / "node-c" / "launch.sh").exists()
    done = runbook_cli(lab, "run", file, "-i", inventory, "--run-dir", lab.tmp / "run", "-o", "json", timeout=120)
    assert done.returncode == 0, done
    told = {one["node"]: one for one in done.json()["stages"][-1]["outcomes"]}
    assert told["node-c"]["verdict"] == "skip"
    assert "no node had to be replaced" in told["node-c"]["proof"]
    assert {one["node"] for one in done.json()["stages"][1]["outcomes"]} == {"node-a", "node-b", "node-c"}
    assert json.loads((lab.tmp / "run" / "result.json").read_text())["exit_code"] == 0
