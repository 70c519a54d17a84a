"""How long it takes to say a version: what every command pays before it does anything."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from .cost import BenchError, Cost, measure
from .table import table, verdict

GOAL_S = 0.15
DEADLINE_S = 60.0


def start(tools: Path, scratch: Path, rounds: int) -> list[str]:
    """`tools` is the environment that has ansible."""
    program = Path(sys.executable).with_name("runbook")
    if not program.exists():
        raise BenchError(f"runbook is not installed beside {Path(sys.executable).name}: run `make bench`")
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "runbook --version": [str(program), "--version"],
        "ansible --version": [str(tools / "bin" / "ansible"), "--version"],
    }
    home = {**os.environ, "HOME": str(scratch)}
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, argv in commands.items():
            cost = measure(name, argv, env=home, cwd=scratch, log=scratch / "version.log", deadline_s=DEADLINE_S)
            if turn:  # the first one reads from the disk
                costs[name].append(cost)
    middle = statistics.median(cost.wall_s for cost in costs["runbook --version"])
    met = verdict(middle <= GOAL_S)
    return [
        f"Start of the program, {rounds} rounds",
        *table(costs, cpu_and_memory=False),
        f"  runbook --version: {middle:.3f} s  (goal <= {GOAL_S:g} s)  {met}",
    ]
