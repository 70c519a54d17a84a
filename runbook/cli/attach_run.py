"""`runbook attach --run-dir`: continues a run that left its job running, in the run's folder, until the job has ended.

The launch is opened again: its recorded end is dropped, and recorded anew when it is known.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from runbook.causes.catalogue import finding_for
from runbook.checks import CHECKS
from runbook.cli.run import detach_launches, load_run_files, unwritable_as_warning
from runbook.engine.bad_nodes import suspected_nodes
from runbook.engine.plan import Choice, Plan, PlannedStage, make_plan
from runbook.engine.run import causes_of_outcomes, make_spares, progress_emitter
from runbook.engine.run_folder import JOB_ENDING_FILE, resumed_run_folder
from runbook.engine.spares import Spares
from runbook.jobs.follow_launch import Follower, Launched
from runbook.model.errors import FilesWrong
from runbook.model.events import (
    Emit,
    Event,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.inventory import Inventory
from runbook.model.redact import Redactor
from runbook.model.run_files import EVENTS_FILE, RESULT_FILE
from runbook.model.safe_files import open_append_below, write_file_below
from runbook.model.verdict import EXIT_INTERRUPTED, EXIT_OF_VERDICT, Outcome, overall_verdict
from runbook.report.run_json import Jsonl, Result, event_to_json, read
from runbook.report.run_record import StageRecord, record_of_events
from runbook.report.standard_streams import stderr, stdout


def follow_run_to_end(arguments: argparse.Namespace, inventory: Inventory) -> int:
    """Follows the job to its end. The exit code is that of the whole run, or 130 if the command was interrupted before:
    then the job goes on. Raises FilesWrong."""
    leaving = threading.Event()
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), lambda *_: leaving.set())
    with resumed_run_folder(arguments.run_dir) as run_dir:
        events = list(read(run_dir / EVENTS_FILE))
        started, stage = _attachable_run(run_dir, events, arguments.job)
        planned = _replan_launch(arguments, started, stage)
        redactor = Redactor(planned[0].secrets if planned else ())
        with _reopen_run_record(run_dir, events, stage, redactor) as (emit, result):
            spares = _restore_spares(*planned, events, emit) if planned else None
            launched = _launched_job(spares, events, redactor) if spares else None

            follower = Follower(
                inventory,
                started.run_id,
                run_dir,
                stage.name,
                say=progress_emitter(stage.name, emit),
                leaving=leaving,
                ending=(run_dir / JOB_ENDING_FILE).exists,
                launched=launched,
                forks=arguments.forks,
            )
            try:
                outcomes = follower.follow(stage.started.nodes)
            except FilesWrong as wrong:
                outcomes = [_unknown_outcome(node, wrong) for node in stage.started.nodes]
            if outcomes is None and not run_dir.exists():
                stderr.line(f"note: {run_dir} was removed; its job goes on, and nobody follows it: `runbook ps`")
            if outcomes is None:
                return EXIT_INTERRUPTED
            outcomes = spares.with_replacements(outcomes) if spares else outcomes
            finished = _emit_run_end(emit, events, started, stage, outcomes)
            write_file_below(run_dir, RESULT_FILE, data=result.text())
    stdout.line(f"{started.run_id}: {finished.verdict}; logs in {run_dir / 'logs'}")
    return finished.exit_code


def _attachable_run(run_dir: Path, events: Sequence[Event], job: str | None) -> tuple[RunStarted, StageRecord]:
    """The start of the run, and its launch, which must be the last stage that the run began. Raises FilesWrong."""
    known = record_of_events(events)
    stage = known.stages[-1] if known.stages else None
    if known.started is None or stage is None or stage.started.check != "launch":
        message = f"{run_dir}: the last stage of this run was not a launch, so it left no job to attach to"
        raise FilesWrong.of("arguments.run-dir", message)
    if job is not None and not known.started.run_id.startswith(job):
        message = f"{run_dir} is the folder of {known.started.run_id}, and not of {job}"
        raise FilesWrong.of("arguments.run-dir", message)
    return known.started, stage


def _replan_launch(
    arguments: argparse.Namespace, started: RunStarted, stage: StageRecord
) -> tuple[Plan, PlannedStage] | None:
    """The plan and the stage by which the job was launched, if the launch is in the inventory itself. None for a
    playbook, which may have changed since, and for a launch that cannot be planned again."""
    if started.playbook != started.inventory:
        return None
    if started.extra is None or started.extra:
        given = "its run did not write down what `-e` gave it"
        if started.extra:
            given = f"its run was given `-e` for {', '.join(started.extra)}, and values are not written down"
        stderr.line(f"note: it is followed, and not launched again if it fails: {given}")
        return None
    try:
        playbook, inventory, _ = load_run_files(argparse.Namespace(**{**vars(arguments), "playbook": None}), {})
        everybody = {*stage.started.nodes} == {node.name for node in inventory.nodes}
        first = next(name for name in started.stages if name != "reach")
        choice = Choice(None if everybody else ":".join(stage.started.nodes), start_at=first)
        plan = make_plan(detach_launches(playbook), inventory, choice)
        (planned,) = [one for one in plan.stages if one.check.user_job and one.name == stage.name]
    except (FilesWrong, ValueError, StopIteration) as error:
        stderr.line(f"note: it is followed, and not launched again if it fails: {error}")
        return None
    return plan, planned


def _restore_spares(plan: Plan, planned: PlannedStage, events: Sequence[Event], emit: Emit) -> Spares:
    """The spares of the launch, as they were when its latest attempt was made."""
    spares, coming = make_spares(plan, planned, emit), dict[str, Mapping[str, object]]()
    for event in events:
        if not isinstance(event, Progress):
            continue
        if isinstance(spare_for := event.data.get("spare"), Mapping) and event.node:
            coming[event.node] = spare_for
        if "attempt" in event.data:
            for spare, spare_for in coming.items():
                spares.knows(spare, str(spare_for.get("for")), str(spare_for.get("why")))
            coming.clear()
    return spares


def _launched_job(spares: Spares, events: Sequence[Event], redactor: Redactor) -> Launched:
    plan, stage = spares.now()
    failures = [event.data.get("failed") for event in events if isinstance(event, Progress)]
    causes = {str(one["attempt"]): str(one["cause"]) for one in failures if isinstance(one, Mapping)}
    job = stage.check.user_job
    assert job is not None
    return Launched(job, stage.inventory, plan.sources, redactor, causes, spares)


@contextlib.contextmanager
def _reopen_run_record(
    run_dir: Path, events: list[Event], stage: StageRecord, redactor: Redactor
) -> Iterator[tuple[Emit, Result]]:
    """Readers that have replayed the run up to the end of its launch, and `emit` for further events."""
    attempts = [at for at, event in enumerate(events) if isinstance(event, Progress) and "attempt" in event.data]
    latest = max(attempts, default=0)
    events[:] = [event for at, event in enumerate(events) if not _is_end_event(event, stage, of_attempt=at > latest)]
    write_file_below(run_dir, EVENTS_FILE, data="".join(f"{event_to_json(event)}\n" for event in events))
    (run_dir / RESULT_FILE).unlink(missing_ok=True)
    result = Result()
    for event in events:
        result(event)
    with io.TextIOWrapper(open_append_below(run_dir, EVENTS_FILE), encoding="utf-8") as file:
        keep = Jsonl(file, of_ranks=False)

        def emit(event: Event) -> None:
            event = redactor.anything(event)
            result(event)
            with unwritable_as_warning(run_dir):  # a full disk: no reason to end a run
                keep(event)

        yield emit, result


def _is_end_event(event: Event, stage: StageRecord, *, of_attempt: bool) -> bool:
    """Whether an event belongs to the end of the launch or of the run. `of_attempt`: the event came during the latest
    attempt, so that a recorded end of an attempt is the launch's."""
    if isinstance(event, RunFinished):
        return True
    if isinstance(event, StageStarted | RunStarted) or getattr(event, "stage", "") != stage.name:
        return False
    if isinstance(event, Progress):
        return of_attempt and "ends" in event.data
    return isinstance(event, OutcomeReached | StageFinished)


def _emit_run_end(
    emit: Emit, events: Sequence[Event], started: RunStarted, stage: StageRecord, outcomes: list[Outcome]
) -> RunFinished:
    """Emits the outcomes of the job, the end of the launch and the end of the run, which it returns."""
    for outcome in outcomes:
        emit(OutcomeReached(time.time(), stage.name, outcome))
    now, verdict = time.time(), overall_verdict(outcome.verdict for outcome in outcomes)
    emit(StageFinished(now, stage.name, verdict, round(now - stage.started.time, 3)))
    known = record_of_events(events)
    seen = [outcome for one in known.stages for outcome in one.outcomes] + outcomes
    verdict = overall_verdict(outcome.verdict for outcome in seen)
    checks = [one for one in known.stages if getattr(CHECKS.get(one.started.check), "names_bad_nodes", False)]
    found = [suspected_nodes(one.outcomes) for one in checks]  # none by a launch: its program may fail by itself

    def named(those: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
        return tuple(name for name in started.nodes if any(name in one for one in those))

    bad = named([one.bad for one in found])
    unknown = named([one.unknown for one in found])
    finished = RunFinished(
        time=now,
        verdict=verdict,
        exit_code=EXIT_OF_VERDICT[verdict],
        stopped_at=stage.name if overall_verdict(outcome.verdict for outcome in outcomes).stops else None,
        seconds=round(now - started.time, 3),
        causes=causes_of_outcomes(seen),
        run_dir=started.run_dir,
        bad=bad,
        dropped=known.dropped,
        unknown=tuple(name for name in unknown if name not in bad),
    )
    emit(finished)
    return finished


def _unknown_outcome(node: str, wrong: FilesWrong) -> Outcome:
    says = f"how the job ended on {node} is not known: {wrong.problems[0].message}"
    return Outcome.unknown(node, finding_for("insufficient-evidence", says, way="server-gone"))
