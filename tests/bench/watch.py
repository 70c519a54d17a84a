"""What `watch:` costs a training: the time of its steps with it, over that of the same training without."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from lab import Lab

from .cost import BenchError, Cost, measure, tail
from .table import ratio, table

GOAL = 1.01
DEADLINE_S = 300.0
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
"""


def watched(lab: Lab, rounds: int) -> list[str]:
    """`lab` has two hosts."""
    lab.work_file("train.py", TRAINS)
    kinds = {"with `watch: {}`": ", watch: {}", "without": ""}
    steps: dict[str, list[Cost]] = {name: [] for name in kinds}
    for turn in range(rounds):
        for name in kinds if turn % 2 else reversed(kinds):
            steps[name].append(Cost(_step_s(lab, f"{turn}-{len(kinds[name])}", kinds[name]), 0.0, 0))
    over, under = steps.values()
    return [
        f"A training of {SECONDS} s on two nodes, seconds a step, {rounds} rounds",
        *table(steps, cpu_and_memory=False),
        ratio("a step that is watched over one that is not", over, under, at_most=GOAL).line(),
    ]


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
