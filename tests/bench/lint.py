"""Linting large inventories: wall time, memory, growth, and the ratio to a YAML parser that only loads the file."""

from __future__ import annotations

import os
import statistics
import sys
from pathlib import Path

from .cost import BenchError, Cost, measure
from .table import Ratio, ratio, table, verdict

NODES = (1_000, 10_000, 20_000)
GOAL_NODES = 10_000
GOAL_S = 3.0
GOAL_MIB = 300
GOAL_GROWTH = 1.3
"""Twice the nodes may cost this many times twice the time."""
DEADLINE_S = 120.0

LOAD = "import sys, yaml; yaml.load(open(sys.argv[1], encoding='utf-8'), yaml.CSafeLoader)"


def lint(scratch: Path, rounds: int) -> list[str]:
    program = Path(sys.executable).with_name("runbook")
    if not program.exists():
        raise BenchError(f"runbook is not installed beside {Path(sys.executable).name}: run `make bench`")
    home = {**os.environ, "HOME": str(scratch)}
    costs: dict[str, list[Cost]] = {}
    for nodes in NODES:
        file = scratch / f"{nodes}.yml"
        file.write_text(inventory(nodes), encoding="utf-8")
        for name, argv in {
            f"runbook lint, {nodes:,} nodes": [str(program), "lint", str(file)],
            f"yaml.CSafeLoader, {nodes:,} nodes": [sys.executable, "-c", LOAD, str(file)],
        }.items():
            for _ in range(rounds):
                cost = measure(name, argv, env=home, cwd=scratch, log=scratch / "lint.log", deadline_s=DEADLINE_S)
                costs.setdefault(name, []).append(cost)
    return [f"Lint of nodes that are written out one by one, {rounds} rounds", *table(costs), *_verdicts(costs)]


def _verdicts(costs: dict[str, list[Cost]]) -> list[str]:
    ours = costs[f"runbook lint, {GOAL_NODES:,} nodes"]
    twice = costs[f"runbook lint, {2 * GOAL_NODES:,} nodes"]
    wall = statistics.median(cost.wall_s for cost in ours)
    peak = max(cost.peak_bytes for cost in ours) / 2**20
    growth: Ratio = ratio(f"{2 * GOAL_NODES:,} nodes against {GOAL_NODES:,}", twice, ours, at_most=2 * GOAL_GROWTH)
    loading = ratio("lint against loading alone", ours, costs[f"yaml.CSafeLoader, {GOAL_NODES:,} nodes"], at_most=10)
    return [
        f"  {GOAL_NODES:,} nodes: {wall:.2f} s  (goal <= {GOAL_S:g} s)  {verdict(wall <= GOAL_S)}",
        f"  {GOAL_NODES:,} nodes: {peak:.0f} MiB  (goal <= {GOAL_MIB} MiB)  {verdict(peak <= GOAL_MIB)}",
        growth.line(),
        loading.line(),
    ]


def inventory(nodes: int) -> str:
    """Sound, so that every rule looks at every node; each node says everything itself, as a generated file does."""
    head = (
        "name: large\n"
        "rendezvous: {master: gn00000, port: 29500, backend: nccl}\n"
        "network: {interface: ib0, ports: 29500-29510}\n"
        "infiniband: {hca: mlx5, min_rate_gbps: 200}\n"
        "env: {NCCL_DEBUG: WARN}\n"
        "nodes:\n"
    )
    return head + "".join(_node(number) for number in range(nodes))


def _node(number: int) -> str:
    return (
        f"  gn{number:05}:\n"
        f"    address: 10.{number >> 16}.{number >> 8 & 255}.{number & 255}\n"
        "    gpus: 8\n"
        "    env: {NCCL_IB_TIMEOUT: 22, OMP_NUM_THREADS: 8}\n"
        f"    ssh: {{user: ubuntu, port: 22, key: ~/.ssh/id_ed25519}}\n"
    )
