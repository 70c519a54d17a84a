"""What a run that left its job running is told to have been once the job has ended."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runbook.causes.catalogue import finding_for
from runbook.cli import attach_run
from runbook.cli.run import load_run_files
from runbook.engine import run
from runbook.engine.plan import Choice, make_plan
from runbook.engine.run import RunSettings
from runbook.model.events import Event, OutcomeReached, RunStarted, StageStarted
from runbook.model.verdict import Outcome, Verdict
from runbook.report.run_record import record_of_events


def test_a_program_that_raises_makes_no_bad_node_and_what_checks_found_stays() -> None:
    loss = finding_for("packet-loss", "node-c loses 31 % of what peers send", way="")
    started = RunStarted(1.0, "job-1", "1", "p", "i", ("node-a", "node-b", "node-c"), ("reach", "train"), "/run")
    events: list[Event] = [
        started,
        StageStarted(1.0, "ping", "ping", ("node-a", "node-b", "node-c")),
        *(OutcomeReached(1.0, "ping", Outcome.passed(name, "all is well")) for name in ("node-a", "node-b")),
        OutcomeReached(1.0, "ping", Outcome.failed("node-c", loss)),
        StageStarted(2.0, "train", "launch", ("node-a", "node-b")),
    ]
    raised = finding_for("program-error", "rank 1 on node-b exited with code 1: ValueError", log="/log")
    peer = finding_for("ssh-unreachable", "node-a was lost", way="lost", node="node-a")
    finished = attach_run._emit_run_end(
        events.append,
        events,
        started,
        record_of_events(events).stages[-1],
        [Outcome.unknown("node-a", peer), Outcome.failed("node-b", raised)],
    )
    assert finished.verdict is Verdict.FAIL
    assert (finished.bad, finished.unknown) == (("node-c",), ())


INVENTORY = """nodes: {node-a: {address: 10.0.0.1}, node-b: {address: 10.0.0.2}}
defaults: {vars: {lr: 1}}
launch: {command: [train.py, --lr, "{{ lr }}"], workdir: ~/work, retries: 2}
"""


@pytest.mark.parametrize(
    ("extra", "says"),
    [((), ""), (("lr",), "was given `-e` for lr"), (None, "did not write down what `-e` gave it")],
)
def test_no_other_training_is_launched_than_the_run_had(
    extra: tuple[str, ...] | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yml"
    path.write_text(INVENTORY)
    asked = argparse.Namespace(command="attach", inventory=str(path), playbook=None)
    playbook, inventory, _ = load_run_files(asked, {})
    plan = make_plan(playbook, inventory, Choice())
    told: list[Event] = []

    def no_stage(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "_run_stage", no_stage)
        made = replace(plan, choice=Choice(extra=dict.fromkeys(extra or (), 3)))
        run.run_plan(made, RunSettings("job-1", tmp_path), told.append)
    (started,) = [event for event in told if isinstance(event, RunStarted)]
    assert started.extra == (extra or ())
    launched = StageStarted(2.0, plan.stages[-1].name, "launch", ("node-a", "node-b"))
    stage = record_of_events([started, launched]).stages[-1]
    found = attach_run._replan_launch(asked, replace(started, extra=extra), stage)
    assert (found is not None) == (says == "")
    assert says in capsys.readouterr().err
