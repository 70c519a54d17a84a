"""A server's folder in which people have worked: a group that runs and one that does not, and runs that measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

from report.varied import linked, swept, write_run

from runbook.agent.protocol import Enrolment, GpuLoad, Heartbeat, JobProcess
from runbook.model.events import Event, OutcomeReached, RunStarted, StageStarted
from runbook.model.verdict import Finding, Outcome
from runbook.report.run_json import event_to_json
from runbook.serve.agent_fleet import Fleet
from runbook.serve.agent_states import reported_rank_states
from runbook.serve.run_logs import log_file_id
from runbook.serve.run_processes import process_start_mark

JOB = "job-1"
POOL = """\
name: {name}
defaults: {{connection: agent, processes: 2}}
nodes:
  {one}: {{address: 10.0.0.6}}
  {two}: {{address: 10.0.0.7}}
launch:
  command: [python, train.py]
"""
VALUES = {
    "groups": {"name": "pool", "version": "1", "shell": "sh", "node": "gn6"},
    "nodes": {"name": "gn6"},
    "runs": {"id": "goes-on", "file": log_file_id("console.txt")},
}
"""Of a path's parameters, by what the path is about."""


def use(folder: Path) -> None:
    """Groups `pool` (gn6, gn7) and `idle` (gn8, gn9), runs `one`, `two`, `three`, and `goes-on`, which is of `pool` and
    for which this process stands."""
    (folder / "groups").mkdir()
    for name, one, two in (("pool", "gn6", "gn7"), ("idle", "gn8", "gn9")):
        (folder / "groups" / f"{name}.yml").write_text(POOL.format(name=name, one=one, two=two))
    write_run(folder / "runs" / "one", linked(4, 3))
    write_run(folder / "runs" / "two", swept())
    write_run(folder / "runs" / "three", swept(0.5))
    run = folder / "runs" / "goes-on"
    run.mkdir()
    about = {"pid": os.getpid(), "began": process_start_mark(os.getpid()), "group": "pool", "person": "ann"}
    (run / "started.json").write_text(json.dumps(about))
    nodes = ("gn6", "gn7")
    told: list[Event] = [
        RunStarted(1.0, JOB, "0.1.0", "pool.yml", "pool.yml", nodes, ("firewall", "train"), str(run)),
        StageStarted(1.0, "firewall", "firewall", nodes),
        OutcomeReached(
            2.0, "firewall", Outcome.failed("gn6", Finding("firewall-drop", "gn6 drops TCP 29500", "let it in"))
        ),
    ]
    (run / "events.jsonl").write_text("".join(f"{event_to_json(event)}\n" for event in told))
    (run / "console.txt").write_text("a line\nanother line\n")


def heard(fleet: Fleet, name: str = "gn6", *, gpu: str = "NVIDIA H100", step: str = "150") -> str:
    """Enrol this node, as if its agent had told of a GPU and of two ranks of JOB; its token."""
    _, token = fleet.enrol_host(Enrolment.of(fleet.make_enrolment_string("ann")).secret, name)
    member = fleet.by_token(token)
    assert member is not None
    kept = [
        JobProcess(JOB, 1, f"rank-{rank}.{name}.l{rank}", [rank], 4711, step=step, step_age_s=2.0) for rank in (0, 1)
    ]
    member.beat = Heartbeat(1, load=[0.5], cpus=8, gpus=[GpuLoad(0, gpu, 97.0, 40960, 81559)], jobs=kept)
    member.ranks = reported_rank_states(kept)
    return token


def filled(path: str, **known: str) -> str:
    """The path of a route, with parameters of what exists here; `known` are better ones."""
    parts = path.split("/")
    values = {**next((VALUES[part] for part in parts if part in VALUES), {}), **known}
    return "/".join(values.get(part[1:-1], "x") if part.startswith("{") else part for part in parts)
