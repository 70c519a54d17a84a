"""The script that a launch runs on a node is the one that `render` writes for it."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from runbook.engine.plan import Choice, make_plan
from runbook.engine.scripts import node_files
from runbook.files.inventory import load_inventory
from runbook.jobs.attempt import make_attempt

from .made_up_plans import playbook

NODES = """
    rendezvous: {master: node-a}
    env: {NCCL_DEBUG: WARN}
    nodes:
      node-a: {address: 10.0.0.1, processes: 1}
      node-b: {address: 10.0.0.2, processes: 3, vars: {data: /mnt/b}, activate: . /opt/venv/bin/activate}
"""
LAUNCH = """
    vars: {data: "it's /mnt/a"}
    stages:
      - check: connection
      - name: train
        launch:
          launcher: LAUNCHER
          command: [train.py, --data, "{{ data }}", --rank-of-node, "{{ node_rank }}"]
          workdir: ~/work
          env: {OMP_NUM_THREADS: 4}
          retries: 2
"""
ADDED = re.compile(
    r" +(?:--(?:log[-_]dir=/w/attempt-01/by-launcher|redirects=3) \\|# It may be asked .*|.*RUNBOOK_STACKS.*)\n"
)
"""All that a run adds: where a launcher puts what each of its ranks writes, and how a rank can be asked where it is."""


@pytest.mark.parametrize("launcher", ["direct", "jax", "torchrun", "torch.distributed.launch"])
def test_a_launch_runs_what_render_writes(tmp_path: Path, launcher: str) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(dedent(NODES))
    inventory, origins = load_inventory(file, environ={})
    plan = make_plan(playbook(tmp_path, LAUNCH.replace("LAUNCHER", launcher)), inventory, Choice())
    stage = plan.stages[-1]
    job = stage.check.user_job
    assert job is not None
    tried = make_attempt(job, stage.inventory, 1, 1)
    for one in node_files(plan, origins):
        run = tried.script(one.node.name, "/w/attempt-01", plan.sources).files["launch.sh"].decode()
        rendered = one.files["launch.sh"].data.decode()
        assert ADDED.sub("", run) == rendered
