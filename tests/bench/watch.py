"""What `watch:` costs a training: the time of its steps with it, over that of the same training without, and the CPU of
runbook's own processes on its nodes."""

from __future__ import annotations

import os
import re
import statistics
import sys
import threading
import time
from pathlib import Path

from lab import Lab

from .cost import BenchError, Cost, measure, tail
from .table import ratio, table, verdict

GOAL = 1.01
GOAL_CPU = 0.005
"""Of one core, on each node."""

DEADLINE_S = 300.0
SETTLED_S = 15.0
EVERY_S = 2.0
SUPERVISOR = re.compile(r"\S*python\S* -S -E -s -u -c .*runbook-supervisor", re.DOTALL)
TICKS = os.sysconf("SC_CLK_TCK")
BASELINE_S = 100
"""So the look at who is late comes within the training, after a fifth of it."""

SECONDS = 75
"""Of training: two readings of the counters, and the look at who is late, which every watched training has once."""

TRAINS = f"""
import os, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
data, weights = torch.ones(250_000), torch.rand(400, 400)
for step in range(10**9):
    if step == 20:
        begun = time.monotonic()
    for _ in range(20):
        weights = torch.tanh(weights @ weights)
    data[0] = step > 20 and time.monotonic() - begun > {SECONDS}
    dist.all_reduce(data)
    if dist.get_rank() == 0:
        print(f"step {{step}}", flush=True)
    if data[0]:
        break
if dist.get_rank() == 0:
    print(f"a step took {{(time.monotonic() - begun) / (step - 20):.9f}} s", flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def watched(lab: Lab, rounds: int) -> list[str]:
    """`lab` has two hosts."""
    lab.work_file("train.py", TRAINS)
    kinds = {"with `watch:`": f", watch: {{baseline: {BASELINE_S}s}}", "without": ""}
    steps: dict[str, list[Cost]] = {name: [] for name in kinds}
    shares: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(rounds):
        for name in kinds if turn % 2 else reversed(kinds):
            with Supervisors(lab) as supervisors:
                steps[name].append(Cost(_step_s(lab, f"{turn}-{len(kinds[name])}", kinds[name]), 0.0, 0))
            shares[name].append(supervisors.share)
    over, under = steps.values()
    watched, alone = (statistics.median(each) for each in shares.values())
    return [
        f"A training of {SECONDS} s on two nodes, seconds a step, {rounds} rounds",
        *table(steps, cpu_and_memory=False),
        ratio("a step that is watched over one that is not", over, under, at_most=GOAL).line(),
        f"  runbook on a node, of one core: {watched:.2%} with, {alone:.2%} without",
        f"  the watch on a node: {watched - alone:.2%}  (goal <= {GOAL_CPU:.1%})  {verdict(watched - alone <= GOAL_CPU)}",
    ]


class Supervisors:
    """What runbook's supervisors on the hosts use, with the programs that they have run; while the block lasts."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._read_on, daemon=True)
        self._seen: dict[int, list[tuple[float, float]]] = {}  # by pid: a time, and the CPU seconds until then

    def __enter__(self) -> Supervisors:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    @property
    def share(self) -> float:
        """Of one core, a node, once the launch had settled."""
        rates = [
            (last_s - first_s) / (last - first)
            for (first, first_s), *_, (last, last_s) in self._seen.values()
            if last - first > SECONDS / 2
        ]
        if len(rates) != len(list(self._lab)):
            raise BenchError(f"of {len(rates)} supervisors the CPU time is known")
        return statistics.mean(rates)

    def _read_on(self) -> None:
        while not self._ending.wait(EVERY_S):
            for host in self._lab:
                for pid, line in host.processes(self._lab.user):
                    if SUPERVISOR.match(line) and (found := _lived_and_used(pid)) and found[0] > SETTLED_S:
                        self._seen.setdefault(pid, []).append((time.monotonic(), found[1]))


def _lived_and_used(pid: int) -> tuple[float, float] | None:
    """How long a process has lived, and the CPU seconds of it and of its children that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS, sum(map(int, fields[11:15])) / TICKS


def _step_s(lab: Lab, name: str, more: str) -> float:
    playbook, folder, log = lab.tmp / "train.yml", lab.tmp / f"run-{name}", lab.tmp / "train.log"
    launch = f"{{command: [train.py], workdir: ~/work{more}}}"
    playbook.write_text(f"name: train\nstages:\n  - {{name: train, launch: {launch}}}\n")
    argv = [sys.executable, "-m", "runbook", "run", str(playbook), "-i", str(lab.inventory()), "--run-dir", str(folder)]
    measure("runbook", argv, env=lab.environment(), cwd=lab.tmp, log=log, deadline_s=DEADLINE_S)
    out = Path(folder, "logs", "attempt-01", "rank-00000.node-a.l0.out").read_text()
    found = re.search(r"^a step took ([\d.]+) s$", out, re.MULTILINE)
    if found is None:
        raise BenchError(f"the training did not come to its end{tail(log)}")
    return float(found[1])
