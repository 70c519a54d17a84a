"""Two dozen faults in a row, drawn at random: servers, agents, networks, followers and ranks; nothing is orphaned, no line is lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab import Host
from lab.agents import AgentLab
from lab.processes import wait_until

from .test_from_the_page import Page

pytestmark = [pytest.mark.lab, pytest.mark.thorough, pytest.mark.slow]
FAULTS = 24
SEED = int(os.environ.get("RUNBOOK_FAULT_SEED", "24"))
COUNTS = """\
import itertools, os, time
print("pid", os.getpid(), flush=True)
with open(f"/shared/counts/{os.environ['RANK']}.{os.getpid()}", "ab", buffering=0) as counts:
    for number in itertools.count(1):
        print("line", number, flush=True)
        counts.write(b"%d\\n" % number)
        time.sleep(0.1)
"""
"""It starts no process: a child between fork and exec would look like one rank more."""
SOON_S = 300


class Cluster:
    """The lab, somebody at its page, and the run that goes on."""

    def __init__(self, lab: AgentLab) -> None:
        self.lab = lab
        self.page = Page(lab)
        self.runs: list[str] = []
        self.start()

    def start(self) -> None:
        """From the page, once nothing stands against it."""
        self.lab.await_online(*self.lab.names, timeout=SOON_S)
        self.runs.append(self.page.press("/groups/train/start", only="launch"))
        wait_until("it runs by itself", (self.folder / "follower.json").exists, timeout=SOON_S)
        assert self.ranks() == 4

    @property
    def folder(self) -> Path:
        return self.lab.data / "runs" / self.runs[-1]

    def ranks(self) -> int:
        return sum(len(pids(self.lab, host)) for host in self.lab)

    def agrees(self) -> bool:
        """Whether the page says of the run what the nodes show."""
        told = self.page.run(self.runs[-1])
        return bool(told["running"]) == (self.ranks() == 4)


def pids(lab: AgentLab, host: Host) -> list[int]:
    """Of ranks."""
    return [pid for pid, command in host.processes(lab.user) if command == f"{lab.python} /shared/counts.py"]


def server_killed(at: Cluster, chance: random.Random) -> None:
    at.lab.kill_server()
    time.sleep(chance.uniform(0, 5))
    at.lab.server = at.lab.serve()
    at.page = Page(at.lab)


def agent_killed(at: Cluster, chance: random.Random) -> None:
    host = chance.choice([*at.lab])
    at.lab.signal_agent(host, signal.SIGKILL)
    at.lab.agents[host.name].wait(30)
    time.sleep(chance.uniform(0, 5))
    at.lab.start_agent(host)


def network_cut(at: Cluster, chance: random.Random) -> None:
    host = chance.choice([*at.lab])
    host.cut()
    time.sleep(chance.uniform(1, 20))
    host.restore()


def follower_killed(at: Cluster, _chance: random.Random) -> None:
    with contextlib.suppress(ProcessLookupError):  # it is about to be started again
        os.kill(json.loads((at.folder / "follower.json").read_text())["pid"], signal.SIGKILL)


def rank_killed(at: Cluster, chance: random.Random) -> None:
    host = chance.choice([*at.lab])
    host.signal(chance.choice(pids(at.lab, host)), signal.SIGKILL)
    wait_until("the page tells the end", lambda: at.page.run(at.runs[-1])["verdict"], timeout=SOON_S)
    told = at.page.run(at.runs[-1])
    assert told["verdict"] == "fail", told
    assert told["causes"] == ["rank-killed"], told
    wait_until("no rank is left", lambda: at.ranks() == 0, timeout=SOON_S)
    at.start()


KINDS = (server_killed, agent_killed, network_cut, follower_killed, rank_killed)


@pytest.fixture
def lab() -> Iterator[AgentLab]:
    with AgentLab(2) as made:
        (made.shared / "counts").mkdir()
        (made.shared / "counts").chmod(0o1777)
        (made.shared / "counts.py").write_text(COUNTS)
        yield made


def test_faults_in_a_row(lab: AgentLab) -> None:
    launch = {"command": [lab.python, "/shared/counts.py"], "grace": "5s"}
    made = lab.inventory("train.yml", defaults={"processes": 2}, launch=launch)
    (lab.data / "groups").mkdir(mode=0o700, exist_ok=True)
    shutil.copy(made, lab.data / "groups" / "train.yml")
    chance, at = random.Random(SEED), Cluster(lab)
    for number in range(FAULTS):
        kind = chance.choice(KINDS)
        print(f"{number + 1}. {kind.__name__}", flush=True)
        kind(at, chance)
        time.sleep(chance.uniform(0, 3))
    lab.await_online(*lab.names, timeout=SOON_S)
    wait_until("page and nodes agree", at.agrees, timeout=SOON_S)
    assert at.ranks() == 4
    at.page.press("/groups/train/stop")
    wait_until("the page tells the end", lambda: at.page.run(at.runs[-1])["verdict"], timeout=SOON_S)
    for host in lab:
        wait_until("only the agent is left", lambda host=host: len(host.processes(lab.user)) <= 1, timeout=SOON_S)  # type: ignore[misc]
    for run in at.runs:
        whole(lab, lab.data / "runs" / run)


def whole(lab: AgentLab, folder: Path) -> None:
    """Every line that a rank wrote is in the run's folder, once and in order."""
    files = sorted((folder / "logs" / "attempt-01").glob("rank-*.out"))
    assert len(files) == 4
    for rank, file in enumerate(files):
        (pid,) = re.findall(r"\Apid ([0-9]+)\n", file.read_text())
        lines = [int(number) for number in re.findall(r"^line ([0-9]+)$", file.read_text(), re.MULTILINE)]
        counted = len((lab.shared / "counts" / f"{rank}.{pid}").read_text().splitlines())
        assert lines == list(range(1, len(lines) + 1)), f"{file}: {lines[:3]} … {lines[-3:]}"
        assert counted <= len(lines) <= counted + 1, (file, counted)
