"""`runbook diagnose` on many megabytes, beside the cheapest that reads them at all: `grep -c` of one word."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from .cost import BenchError, Cost, measure
from .table import Ratio, table, verdict

SIZE = 100_000_000
GOAL_S = 5.0
GOAL_MEMORY = 200_000_000
DEADLINE_S = 300.0


def diagnose(scratch: Path, rounds: int) -> list[str]:
    """Eight ranks' logs of 100 MB together: training, NCCL's INFO lines, retries, and one rank that was killed."""
    logs = scratch / "logs"
    logs.mkdir()
    for rank in range(8):
        _write(logs / f"rank{rank}.log", rank, SIZE // 8)
    commands = {
        "grep -c": ["grep", "-c", "-r", "exitcode", str(logs)],
        "runbook diagnose": [sys.executable, "-m", "runbook", "diagnose", str(logs)],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for turn in range(rounds + 1):
        for name, argv in commands.items():
            log = scratch / "diagnose.log"
            cost = measure(name, argv, env=dict(os.environ), cwd=Path.cwd(), log=log, deadline_s=DEADLINE_S)
            if turn:  # the first one reads from the disk
                costs[name].append(cost)
            if name == "runbook diagnose" and not log.read_text().startswith("rank-killed"):
                raise BenchError(f"diagnose names another cause: {log.read_text()[:200]}")
    mine, grep = costs["runbook diagnose"], costs["grep -c"]
    ratio = Ratio(
        "diagnose over grep -c", tuple(a.wall_s / b.wall_s for a, b in zip(mine, grep, strict=True)), 60, True
    )
    wall, peak = sorted(cost.wall_s for cost in mine)[len(mine) // 2], max(cost.peak_bytes for cost in mine)
    return [
        f"Diagnosis of {SIZE / 1e6:.0f} MB in 8 logs, {rounds} rounds",
        *table(costs),
        (
            f"  wall {wall:.1f} s  (goal <= {GOAL_S:g} s)  {verdict(wall <= GOAL_S)}; "
            f"memory {peak / 1e6:.0f} MB  (goal <= {GOAL_MEMORY / 1e6:.0f} MB)  {verdict(peak <= GOAL_MEMORY)}"
        ),
        ratio.line(),
    ]


def _write(file: Path, rank: int, size: int) -> None:
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
