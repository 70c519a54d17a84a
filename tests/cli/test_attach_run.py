"""What a run that left its job running is told to have been once the job has ended."""

from __future__ import annotations

from runbook.causes.catalogue import finding_for
from runbook.cli import attach_run
from runbook.model.events import Event, OutcomeReached, RunStarted, StageStarted
from runbook.model.verdict import Outcome, Verdict
from runbook.report.run_record import record


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
    finished = attach_run._emit_end(
        events.append,
        events,
        started,
        record(events).stages[-1],
        [Outcome.unknown("node-a", peer), Outcome.failed("node-b", raised)],
    )
    assert finished.verdict is Verdict.FAIL
    assert (finished.bad, finished.unknown) == (("node-c",), ())
