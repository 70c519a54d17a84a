"""Faults at random against a launch: it ends with a code and a cause, no line that a rank wrote is lost, nothing is left."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from lab import Host, Lab
from lab.cli import runbook_cli, runbook_finish, runbook_start
from lab.processes import wait_until
from profiles import one_in

pytestmark = pytest.mark.lab
PROGRAM = Path(__file__).with_name("chaos.py")
SECONDS = 2.5
ORPHANS_S = 40.0
"""Silence by which a node notices a lost controller, the grace, and what a busy machine adds."""

Run = subprocess.Popen[str]
LOST = {"ssh-unreachable", "ssh-timeout", "host-unreachable"}


@dataclass(frozen=True)
class Kind:
    """`codes` and `causes` are those that runbook documents for it; no causes: it passes. `ways` are the program's."""

    act: Callable[[Lab, Host, Run], None]
    codes: frozenset[int]
    causes: frozenset[str] = frozenset()
    ways: tuple[str, ...] = ()


def ranks(lab: Lab, host: Host) -> list[int]:
    """Leaders only: a rank's own children have other command lines."""
    found = [(pid, line) for pid, line in host.processes(lab.user) if "chaos.py" in line]
    return [pid for pid, line in found if "keeper.py" not in line and "runbook-supervisor" not in line]


def keepers(lab: Lab, host: Host) -> list[int]:
    return [pid for pid, line in host.processes(lab.user) if "keeper.py" in line]


def agents(lab: Lab, host: Host) -> list[int]:
    return [pid for pid, line in host.processes(lab.user) if "-c import sys" in line and "runbook-supervisor" in line]


def send(find: Callable[[Lab, Host], list[int]], *numbers: int) -> Callable[[Lab, Host, Run], None]:
    """Signals, a second apart, to one of the processes."""

    def act(lab: Lab, host: Host, run: Run) -> None:
        pid = find(lab, host)[-1]
        for number in numbers:
            host.signal(pid, number)
            if number != numbers[-1]:
                time.sleep(1.0)

    return act


def connection(lab: Lab, host: Host, run: Run) -> None:
    """Kill sshd's processes of the connection; the listener stays."""
    host.run("pgrep -f '^sshd[a-z-]*: rblab' | xargs -r kill -9", "root")


def supervisors(lab: Lab, host: Host, run: Run) -> None:
    """All of ours on the host at once: nobody of us is left to end the ranks."""
    for pid in [*agents(lab, host), *keepers(lab, host)]:
        host.signal(pid, signal.SIGKILL)


def nothing(lab: Lab, host: Host, run: Run) -> None:
    """The program's own ways are the fault."""


KINDS = {
    "a killed rank": Kind(send(ranks, signal.SIGKILL), frozenset({1}), frozenset({"rank-killed"})),
    "a rank that pauses": Kind(send(ranks, signal.SIGSTOP, signal.SIGCONT), frozenset({0})),
    "a killed keeper": Kind(send(keepers, signal.SIGKILL), frozenset({1}), frozenset({"terminated-from-outside"})),
    "a killed agent": Kind(send(agents, signal.SIGKILL), frozenset({3}), frozenset(LOST)),
    "killed supervisors": Kind(
        supervisors, frozenset({1, 3}), frozenset({*LOST, "terminated-from-outside"}), ("deaf",)
    ),
    "a killed connection": Kind(connection, frozenset({3}), frozenset(LOST)),
    "a killed sshd": Kind(lambda lab, host, run: host.stop_sshd(), frozenset({0})),
    "a cut network": Kind(lambda lab, host, run: host.cut(), frozenset({3}), frozenset(LOST)),
    "a killed controller": Kind(lambda lab, host, run: run.kill(), frozenset({-9})),
    "lost packets": Kind(lambda lab, host, run: lose_to_us(host, 10), frozenset({0})),
    "a flood": Kind(nothing, frozenset({0}), ways=("flood", "binary", "unended")),
    "deaf ranks": Kind(send(ranks, signal.SIGKILL), frozenset({1}), frozenset({"rank-killed"}), ("deaf", "binary")),
    "children left": Kind(send(ranks, signal.SIGKILL), frozenset({1}), frozenset({"rank-killed"}), ("children",)),
    "a closed stream": Kind(nothing, frozenset({0}), ways=("closes", "unended")),
    "a polite end": Kind(send(ranks, signal.SIGTERM), frozenset({1}), frozenset({"terminated-from-outside"})),
}


def lose_to_us(host: Host, percent: int) -> None:
    """Of what the host sends to this machine as well, which no rule in the switch touches."""
    rule = f"numgen random mod 100 < {percent} drop"
    host.firewall(f"table inet lossy {{\n chain out {{\n type filter hook output priority 0;\n {rule}\n }}\n}}\n")


def mend(lab: Lab, host: Host, name: str) -> None:
    if name == "a cut network":
        host.restore()
    if name == "a killed sshd":
        host.start_sshd()
    if name == "lost packets":
        host.nft("delete table inet lossy")


class Chaos:
    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab = lab
        self.chance = random.Random(seed)
        lab.work_file("chaos.py", PROGRAM.read_text())

    def inject(self, number: int, name: str) -> None:
        lab, kind = self.lab, KINDS[name]
        host = self.chance.choice(lab.hosts)
        counts = {each.name: {"processes": self.chance.randint(1, 2)} for each in lab}
        wait = self.chance.uniform(0.0, 0.7)
        what = f"injection {number}: {name} on {host.name}, {counts}, {wait:.2f} s after the start"
        print(what)
        for each in lab:
            each.run("rm -rf ~/record", lab.user)
        run_dir = lab.tmp / f"run-{number}"
        inventory = lab.inventory(defaults={"python": lab.python_without_torch}, nodes=counts)
        run = runbook_start(lab, "run", self.playbook(kind), "-i", inventory, "--run-dir", run_dir)
        self.await_records(counts, what)
        time.sleep(wait)
        kind.act(lab, host, run)
        done = runbook_finish(run, timeout=90)
        mend(lab, host, name)
        self.await_nothing(what)
        assert done.returncode in kind.codes, f"{what}\n{done}"
        if kind.causes:
            told = json.loads((run_dir / "result.json").read_text())
            assert told["causes"][0] in kind.causes, f"{what}\n{done}"
        self.compare(run_dir, inventory, counts, f"{what}\n{str(done)[-4000:]}")
        if self.kept():  # of a node that was lost: its logs are the only ones
            cleaned = runbook_cli(lab, "clean", "--all", "-i", inventory)
            assert not self.kept(), f"{what}\n{cleaned}"

    def kept(self) -> list[str]:
        """What lies in the workdirs of the hosts."""
        return [str(path) for host in self.lab for path in host.path("~/.runbook").glob("*")]

    def playbook(self, kind: Kind) -> Path:
        path = self.lab.tmp / "chaos.yml"
        command = json.dumps(["chaos.py", str(SECONDS), *kind.ways])
        launch = f"{{command: {command}, workdir: ~/work, grace: 2s}}"
        path.write_text(f"name: chaos\nstages:\n  - {{name: train, launch: {launch}}}\n")
        return path

    def records(self, counts: dict[str, dict[str, int]]) -> dict[str, bytes]:
        """What every rank says that it wrote, by the name of its log."""
        found, rank = {}, 0
        for host in self.lab:
            for local in range(counts[host.name]["processes"]):
                for end in ("out", "err"):
                    path = host.path(f"~/record/{rank}.{end}")
                    found[f"rank-{rank:05d}.{host.name}.l{local}.{end}"] = path.read_bytes() if path.is_file() else b""
                rank += 1
        return found

    def await_records(self, counts: dict[str, dict[str, int]], what: str) -> None:
        wait_until(f"{what}: the job begins", lambda: all(self.records(counts).values()))

    def await_nothing(self, what: str) -> None:
        deadline = time.monotonic() + ORPHANS_S
        while left := [(host.name, *one) for host in self.lab for one in host.processes(self.lab.user)]:
            assert time.monotonic() < deadline, f"{what}: still alive: {left}"
            time.sleep(0.1)

    def compare(self, run_dir: Path, inventory: Path, counts: dict[str, dict[str, int]], what: str) -> None:
        """Every byte of the records is in the run's folder; or on the node, where the connection or we were killed."""
        here, printed = run_dir / "logs" / "attempt-01", ""
        for name, record in self.records(counts).items():
            if held(here / name, record):
                continue
            if not printed:
                jobs: list[dict[str, Any]] = runbook_cli(self.lab, "ps", "-i", inventory, "-o", "json").json()["jobs"]
                assert len(jobs) == 1, f"{name} is not whole, and the nodes know {jobs}\n{what}"
                told = runbook_cli(self.lab, "logs", jobs[0]["job"], "-i", inventory)
                printed = told.stdout + told.stderr
            host = next(host for host in self.lab if name.split(".")[1] == host.name)
            kept = list(host.path("~/.runbook").glob(f"*/{host.name}/attempt-01/{name}"))
            assert [held(path, record) for path in kept] == [True], (
                f"{name}: {len(record)} bytes written, {kept}\n{what}"
            )
            lines = re.findall(rb"^\d+ (?:out|err) \d+", record, re.MULTILINE)[-2:]
            assert all(line.decode() in printed for line in lines), f"{name}: `logs` does not print its end\n{what}"


def held(path: Path, record: bytes) -> bool:
    """Whether a log has all of the record, and beyond it only what was being written when the rank was killed."""
    log = path.read_bytes() if path.is_file() else b""
    return log.startswith(record) and len(log) - len(record) <= 65536


@pytest.mark.parametrize(
    "name", one_in(5, ["a killed keeper", "killed supervisors", "a killed connection", "a cut network", "a flood"])
)
def test_one_fault(name: str) -> None:
    with Lab(2) as lab:
        Chaos(lab, 5).inject(1, name)


@pytest.mark.thorough
def test_every_fault_in_a_row_in_any_order() -> None:
    seed = int(os.environ.get("RUNBOOK_CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"RUNBOOK_CHAOS_SEED={seed}")
    with Lab(2) as lab:
        chaos = Chaos(lab, seed)
        chaos.chance.shuffle(names := list(KINDS))
        for number, name in enumerate(names, 1):
            chaos.inject(number, name)
