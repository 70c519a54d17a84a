"""How fast the launch scripts of a large cluster are written, against a loop that only fills the template in."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
from pathlib import Path

from .cost import BenchError, Cost, measure
from .table import ratio, table, verdict

GOAL_S = 10.0
GROWTH = 12.0  # ten times the nodes may take twelve times as long: the difference is what a start costs, and noise
SIZES = {1_000: "10.1.[0-3].[1-250]", 10_000: "10.1.[0-39].[1-250]"}
GPUS = 8
LOOP = 3.0
DEADLINE_S = 300.0

PLAYBOOK = """\
name: large
vars: {data: /data, epochs: 3}
stages:
  - check: connection
  - name: train
    launch:
      workdir: /srv/train
      env: {OMP_NUM_THREADS: 8, RUN_NAME: "large-{{ node }}"}
      command: [train.py, "--data={{ data }}", "--shard={{ node_rank }}", "--epochs={{ epochs }}", --lr=3e-06, --amp]
"""


def render(scratch: Path, rounds: int) -> list[str]:
    program = Path(sys.executable).with_name("runbook")
    if not program.exists():
        raise BenchError(f"runbook is not installed beside {Path(sys.executable).name}: run `make bench`")
    (scratch / "large.yml").write_text(PLAYBOOK)
    for count, addresses in SIZES.items():
        width = len(str(count))
        nodes = f'"gn[{1:0{width}}-{count}]": {{address: "{addresses}"}}'
        settings = f"network: {{interface: ib0}}\nenv: {{NCCL_DEBUG: WARN}}\ndefaults: {{gpus: {GPUS}}}\n"
        (scratch / f"{count}.yml").write_text(f"{settings}nodes:\n  {nodes}\n")
    largest = max(SIZES)
    loop = Path(__file__).with_name("bare_template.py")
    commands = {
        f"runbook render, {count:,} nodes": [str(program), "render", "large.yml", "-i", f"{count}.yml", "--out", "out"]
        for count in SIZES
    }
    commands[f"Jinja in a loop, {largest:,} nodes"] = [sys.executable, str(loop), str(largest), str(GPUS), "out"]
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, argv in commands.items():
            log = scratch / "render.log"
            costs[name].append(measure(name, argv, env=os.environ, cwd=scratch, log=log, deadline_s=DEADLINE_S))
            written = sum(1 for _ in (scratch / "out").rglob("*.sh"))
            shutil.rmtree(scratch / "out")
            if written < 2 * min(SIZES):
                raise BenchError(f"{name} wrote {written} scripts only")
    small, large, bare = costs.values()
    middle = statistics.median(cost.wall_s for cost in large)
    growth = ratio(f"{largest:,} nodes over {min(SIZES):,}", large, small, at_most=GROWTH)
    over_loop = ratio("over the loop alone", large, bare, at_most=LOOP)
    return [
        f"Launch scripts, {GPUS} GPUs a node, two scripts a node, {rounds} rounds",
        *table(costs),
        f"  {largest:,} nodes: {middle:.1f} s  (goal <= {GOAL_S:g} s)  {verdict(middle <= GOAL_S)}",
        growth.line(),
        over_loop.line(),
    ]
