"""`runbook diagnose` on many megabytes, beside the cheapest that reads them at all: `grep -c` of one word."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cost import BenchError, Cost, measure
from .table import Ratio, table, verdict

SIZE = 100_000_000
GOAL_MEMORY = 150_000_000
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Workload:
    """Logs of one kind. `begins`: with what their diagnosis must begin."""

    name: str
    write: Callable[[Path, int, int], None]
    goal_s: float
    begins: str


def diagnose(scratch: Path, rounds: int) -> list[str]:
    """Eight ranks' logs of 100 MB together."""
    return [line for one in WORKLOADS for line in _measured(one, scratch, rounds)]


def _measured(workload: Workload, scratch: Path, rounds: int) -> list[str]:
    logs = scratch / workload.name
    logs.mkdir()
    for rank in range(8):
        workload.write(logs / f"rank{rank}.log", rank, SIZE // 8)
    commands = {
        "grep -c": ["grep", "-c", "-r", "Error", str(logs)],
        "runbook diagnose": [sys.executable, "-m", "runbook", "diagnose", str(logs)],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, argv in commands.items():
            log = scratch / "diagnose.log"
            cost = measure(name, argv, env=dict(os.environ), cwd=Path.cwd(), log=log, deadline_s=DEADLINE_S)
            if turn:  # the first one reads from the disk
                costs[name].append(cost)
            if name == "runbook diagnose" and not log.read_text().startswith(workload.begins):
                raise BenchError(f"diagnose names another cause: {log.read_text()[:200]}")
    mine, grep = costs["runbook diagnose"], costs["grep -c"]
    ratio = Ratio(
        "diagnose over grep -c", tuple(a.wall_s / b.wall_s for a, b in zip(mine, grep, strict=True)), 60, True
    )
    wall, peak = sorted(cost.wall_s for cost in mine)[len(mine) // 2], max(cost.peak_bytes for cost in mine)
    return [
        f"Diagnosis of {SIZE / 1e6:.0f} MB in 8 logs, {workload.name}, {rounds} rounds",
        *table(costs),
        (
            f"  wall {wall:.1f} s  (goal <= {workload.goal_s:g} s)  {verdict(wall <= workload.goal_s)}; "
            f"memory {peak / 1e6:.0f} MB  (goal <= {GOAL_MEMORY / 1e6:.0f} MB)  {verdict(peak <= GOAL_MEMORY)}"
        ),
        *([ratio.line()] if workload is WORKLOADS[0] else []),
    ]


def _training(file: Path, rank: int, size: int) -> None:
    """Steps, NCCL's INFO lines, retries, and one rank that was killed."""
    chance = random.Random(rank)
    written = step = 0
    with file.open("w", encoding="utf-8") as out:
        while written < size:
            step += 1
            written += out.write(
                f"2026-11-20 22:30:38,937 [rank{rank}]: step {step} loss {chance.random():.4f} tokens/s {chance.randrange(9999)}\n"
                f"gpu-{rank}:123:{step} [{rank}] NCCL INFO Channel {step % 16:02d}/0 : {rank}[{rank}] -> {step % 64}[0] via NET/IB/0/GDRDMA\n"
            )
            if step % 50 == 0:
                written += out.write(
                    f"[rank{rank}]:[W1120 21:52:34.7 socket.cpp:764] [c10d] The client socket has failed to connect to "
                    f"[gpu-0]:{step % 60000} (errno: 97 - Address family not supported by protocol).\n"
                )
        if rank == 5:
            out.write("  rank      : 5 (local_rank: 5)\n  exitcode  : -9 (pid: 7)\n")
        else:
            out.write("RuntimeError: [pair.cc:598] Connection closed by peer [10.0.0.5]:4242\n")


def _errors(file: Path, rank: int, size: int) -> None:
    """Every line is an error in words of its own."""
    chance = random.Random(rank)
    written = 0
    with file.open("w", encoding="utf-8") as out:
        while written < size:
            words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randrange(3, 10))) for _ in range(9)]
            written += out.write(f"[rank{rank}]: {words[0].title()}Error: {' '.join(words)} failed\n")


WORKLOADS = (
    Workload("of a training", _training, 2.0, "rank-killed"),
    Workload("whose every line is a different error", _errors, 6.0, ""),
)
