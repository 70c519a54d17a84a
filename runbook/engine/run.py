"""Runs a plan: stage after stage, with an outcome for every node; stops at the first failure, and always cleans up."""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet  # before Python 3.11 not the built-in TimeoutError
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import runbook
from runbook.causes.catalogue import causes_of_kind, finding_for, ordered_causes
from runbook.checks.context import Context, Run
from runbook.engine.plan import Plan, PlannedStage
from runbook.engine.run_folder import is_immediate_end_asked
from runbook.launch.ranks import describe_nodes
from runbook.model.command_quoting import shell_word
from runbook.model.errors import machine_limit_finding
from runbook.model.events import (
    Emit,
    Event,
    NodesDropped,
    OutcomeReached,
    Progress,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from runbook.model.inventory import Inventory
from runbook.model.node_ranges import fold
from runbook.model.redact import Redactor
from runbook.model.safe_files import write_file_below
from runbook.model.verdict import EXIT_INTERRUPTED, EXIT_OF_VERDICT, Finding, Outcome, Verdict, overall_verdict
from runbook.transport.node_sessions import Site
from runbook.transport.session import SILENCE_TIMEOUT_S

if TYPE_CHECKING:
    from runbook.engine.bad_nodes import Suspects
    from runbook.engine.spares import Spares

T = TypeVar("T")

LATE_CHECK_TIMEOUT_S = 5.0
"""Seconds that a check may take after its deadline to give its own answer, which says more than the engine's."""

JOB_ENDING_TIMEOUT_S = 3600.0
"""The most seconds for steps that have their own deadlines: the grace of a job, and fetching its logs."""

HURRIED_ENDING_TIMEOUT_S = 15.0
"""The most seconds for ending a job after its grace was cut short."""

HURRY_POLL_INTERVAL_S = 0.5
"""Seconds between two looks for the mark in the run folder that cuts the grace of the ranks short."""


@dataclass(frozen=True)
class RunSettings:
    """How a plan is run: the run's id and folder, how many nodes are asked at once, and whether files stay on the
    nodes."""

    run_id: str
    run_dir: Path
    forks: int = 64
    keep: bool = False


def run_plan(plan: Plan, settings: RunSettings, tell: Emit) -> int:
    """Runs the plan; the exit code. Ctrl-C in the calling thread stops the run and cleans up; the exit code is 130."""
    begun = time.monotonic()
    source = plan.inventory.source
    site = Site(settings.run_id, forks=settings.forks, keep=settings.keep, inventory=source)
    redactor = Redactor(plan.secrets)
    run = Run(settings.run_id, settings.run_dir, site, made_from=plan.sources, redactor=redactor)

    def emit(event: Event) -> None:
        tell(redactor.anything(event))

    emit(
        RunStarted(
            time=time.time(),
            run_id=settings.run_id,
            version=runbook.__version__,
            playbook=plan.playbook.source,
            inventory=source,
            nodes=tuple(node.name for node in plan.inventory.nodes),
            stages=tuple(stage.name for stage in plan.stages),
            run_dir=str(settings.run_dir),
            plan=describe_nodes(
                plan.ranked, spares=[node for node in plan.inventory.nodes if node not in plan.ranked.nodes]
            ),
            extra=tuple(plan.choice.extra),
        )
    )
    course = _Course(plan, run, emit)
    interrupted = False
    try:
        course.follow()
    except KeyboardInterrupt as stopped:
        interrupted, course.stopped_at = True, course.stage.name
        course.seen.extend(stopped.outcomes if isinstance(stopped, _StageStopped) else ())
    cleaned = _clean_nodes(run, interrupted, course.begun)
    verdict = Verdict.UNKNOWN if interrupted else overall_verdict(outcome.verdict for outcome in course.seen)
    code = EXIT_INTERRUPTED if interrupted else EXIT_OF_VERDICT[verdict]
    seconds = round(time.monotonic() - begun, 3)
    names = [node.name for node in plan.inventory.nodes]
    emit(
        RunFinished(
            time=time.time(),
            verdict=verdict,
            exit_code=code,
            stopped_at=course.stopped_at,
            seconds=seconds,
            causes=causes_of_outcomes(course.seen),
            run_dir=str(settings.run_dir),
            cleaned=cleaned,
            bad=tuple(name for name in names if name in course.bad),
            dropped=tuple(name for name in names if name in course.dropped),
            unknown=tuple(name for name in names if name in course.unknown),
            not_dropped=course.not_dropped,
        )
    )
    return code


class _Course:
    """Runs the stages of a plan one after the other, until one stops the run. When nodes are dropped, `plan` becomes
    the plan of the nodes that are left, and stages that have to run again for these do."""

    def __init__(self, plan: Plan, run: Run, emit: Emit) -> None:
        self.plan = plan
        self._run = run
        self._emit = emit
        self.stage = plan.stages[0]  # the stage that runs now
        self.begun: list[PlannedStage] = []  # every stage that has begun, that one included
        self.seen: list[Outcome] = []
        self.stopped_at: str | None = None
        self.bad: set[str] = set()
        self.dropped: set[str] = set()
        self.not_dropped: str | None = None  # why the run stopped although it was to go on without bad nodes
        self._unknown: dict[str, set[str]] = {}  # by stage, the nodes that were unknown when it last ran

    @property
    def unknown(self) -> set[str]:
        """The nodes that were unknown in the latest run of a stage, and are not bad."""
        return set().union(*self._unknown.values()) - self.bad

    def follow(self) -> None:
        """Runs the stages in order until all are done, or one stops the run."""
        done: set[int] = set()
        while (at := next((at for at in range(len(self.plan.stages)) if at not in done), None)) is not None:
            stage = self.stage = self.plan.stages[at]
            self.begun.append(stage)
            outcomes = _run_stage(self.plan, stage, self._run, self._emit)
            self.seen.extend(outcomes)
            done.add(at)
            self._unknown[stage.name] = self._unknown.get(stage.name, set()) & self.dropped
            if overall_verdict(outcome.verdict for outcome in outcomes).stops:
                again = self._after_failure(at, outcomes)
                if again is None:
                    self.stopped_at = stage.name
                    return
                done -= again

    def _after_failure(self, at: int, outcomes: Sequence[Outcome]) -> set[int] | None:
        """The numbers of the stages that run again for the nodes that are left; None if this failure stops the run."""
        from runbook.engine.bad_nodes import (  # only after a failure
            Suspects,
            has_rendezvous_moved,
            must_run_again,
            suspected_nodes,
        )

        stage, before = self.stage, self.plan
        found = suspected_nodes(outcomes) if stage.check.names_bad_nodes else Suspects()
        self.bad |= found.bad.keys()
        self._unknown[stage.name] |= found.unknown.keys()
        if not (stage.stop_on_failure or stage.name == "reach"):
            return set()
        if not self._go_on_without(found):
            return None
        stages = enumerate(zip(before.stages, self.plan.stages, strict=True))
        again = {number for number, (old, new) in stages if has_rendezvous_moved(old, new)}
        return again | ({at} if must_run_again(stage, self.plan.stages[at], outcomes) else set())

    def _go_on_without(self, found: Suspects) -> bool:
        """Whether the run goes on without the nodes in `found`; if so, `plan` becomes that of the others."""
        from runbook.engine.bad_nodes import NotDroppedError, plan_for_rest

        if not self.stage.drop_bad:
            return False
        try:
            self.plan = plan_for_rest(self.plan, self.stage, found.leaving)
        except NotDroppedError as error:
            self.not_dropped = str(error)
            return False
        self.dropped |= found.leaving.keys()
        left = tuple(node.name for node in self.plan.inventory.nodes)
        unknown = () if found.bad or found.ends else tuple(found.unknown)
        self._emit(NodesDropped(time.time(), self.stage.name, found.leaving, unknown, left))
        return True


def causes_of_outcomes(outcomes: list[Outcome]) -> tuple[str, ...]:
    """Each cause once, the root first: causes of failures before those of unknowns, and a cause that follows from
    another after that one. Mere consequences are left out, unless there is nothing else."""
    failed = [f.cause for o in outcomes if o.verdict is Verdict.FAIL for f in o.findings]
    unknown = [f.cause for o in outcomes if o.verdict is Verdict.UNKNOWN for f in o.findings]
    found = list(dict.fromkeys([*failed, *unknown]))
    return tuple(ordered_causes([cause for cause in found if cause not in causes_of_kind("consequence")] or found))


def _run_stage(plan: Plan, stage: PlannedStage, run: Run, emit: Emit) -> list[Outcome]:
    """Runs one stage and reports it; its outcomes."""
    begun = time.monotonic()
    emit(StageStarted(time.time(), stage.name, stage.check.id, stage.nodes))
    if stage.skip is not None:
        outcomes = [Outcome.skipped(node, stage.skip) for node in stage.nodes]
    else:
        try:
            outcomes = (
                make_spares(plan, stage, emit).launch(run) if stage.check.spares else _run_check(plan, stage, run, emit)
            )
        except _StageStopped as stopped:
            _report_stage_end(stage, stopped.outcomes, begun, emit)
            raise
    _report_stage_end(stage, outcomes, begun, emit)
    return outcomes


def _report_stage_end(stage: PlannedStage, outcomes: Sequence[Outcome], begun: float, emit: Emit) -> None:
    """Reports a stage's outcomes and its end."""
    for outcome in outcomes:
        emit(OutcomeReached(time.time(), stage.name, outcome))
    verdict = overall_verdict(outcome.verdict for outcome in outcomes)
    emit(StageFinished(time.time(), stage.name, verdict, round(time.monotonic() - begun, 3)))


class _StageStopped(KeyboardInterrupt):
    """Raised when the user stopped a stage that has reported how its processes ended. Without these `outcomes` the
    launch of a run would seem to go on, and would be followed."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


def make_spares(plan: Plan, stage: PlannedStage, emit: Emit) -> Spares:
    """The spares of a launch stage."""
    from runbook.engine.spares import Spares

    def check(run: Run, now: Plan, one: PlannedStage) -> list[Outcome]:
        return _run_check(now, one, run, emit)

    return Spares(plan, stage, check, progress_emitter(stage.name, emit))


def progress_emitter(stage: str, emit: Emit) -> Callable[..., None]:
    """A function that emits a progress event of the stage."""

    def say(
        text: str, node: str | None = None, rank: int | None = None, data: Mapping[str, object] | None = None
    ) -> None:
        emit(Progress(time.time(), stage, text, node, rank, data or {}))

    return say


def _run_check(plan: Plan, stage: PlannedStage, run: Run, emit: Emit) -> list[Outcome]:
    """Runs a stage's check; one outcome for each node of the stage. The check has a thread of its own, so that
    deadlines and Ctrl-C work however the check is written."""
    if run.pool is not None and run.pool.joined and not stage.check.needs_ranks:
        from runbook.checks.ranks.pool import dismiss_pool

        dismiss_pool(run)  # the pool's ranks have joined and hold the rendezvous port

    say = progress_emitter(stage.name, emit)
    ranks = plan.first_with_ranks if stage.check.id == "reach" else None
    at = Context(
        run=run,
        inventory=stage.inventory,
        stage=stage.name,
        deadline=time.monotonic() + stage.timeout_s,
        say=say,
        needs_pool=ranks.inventory if ranks else None,
        script=(ranks or stage).script,
    )
    future = _run_in_thread(lambda: stage.check.run(at), f"stage {stage.name}")
    begun = time.time()
    try:
        _wait_for_future(
            future,
            time.monotonic()
            + stage.timeout_s
            + (JOB_ENDING_TIMEOUT_S if stage.check.ends_by_itself else LATE_CHECK_TIMEOUT_S),
        )
    except KeyboardInterrupt:
        if stage.check.ends_by_itself:
            _wait_for_ending(future, run, say, begun)
            if future.done() and future.exception() is None:
                raise _StageStopped(complete_outcomes(stage, future.result())) from None
        raise
    if not future.done():
        run.pool = None  # the late check still uses the pool, whose ranks end with the run
        return [Outcome.unknown(node, late_check_finding(stage, node)) for node in stage.nodes]
    error = future.exception()
    if error is not None:
        if limit := machine_limit_finding(error):
            return [Outcome.unknown(node, limit) for node in stage.nodes]
        with contextlib.suppress(OSError):
            write_file_below(
                run.run_dir, "crash.txt", data=run.redactor.text("".join(traceback.format_exception(error)))
            )
        return [Outcome.unknown(node, crash_finding(stage, error, run.run_dir)) for node in stage.nodes]
    return outcomes_after_slurm_end(run, stage.inventory, complete_outcomes(stage, future.result()))


def _run_in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Does `work` in a thread of its own, which Ctrl-C does not interrupt."""
    future: Future[T] = Future()

    def do() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001  the caller turns any error into an unknown
            future.set_exception(error)

    threading.Thread(target=do, name=name, daemon=True).start()
    return future


def _wait_for_future(future: Future[Any], deadline: float) -> None:
    """Waits until a future is done, or until the deadline."""
    while not future.done() and time.monotonic() < deadline:
        # Short waits: a thread that waits without end does not see Ctrl-C on every platform.
        try:
            future.exception(timeout=0.2)
        except NotYet:
            continue


def _wait_for_ending(future: Future[list[Outcome]], run: Run, say: Callable[..., None], begun: float) -> None:
    """Gives a check time to end the processes that it started, up to JOB_ENDING_TIMEOUT_S. Another Ctrl-C cuts their
    grace short; so does a mark in the run folder, because two signals that come close together arrive as one."""
    run.stopping.set()
    until, announced = time.monotonic() + JOB_ENDING_TIMEOUT_S, False
    while not future.done() and time.monotonic() < until:
        hurried = False
        try:
            if not announced:
                announced = True
                say("stopping: ranks have their grace to end; press Ctrl-C again to kill them")
            _wait_for_future(future, min(until, time.monotonic() + HURRY_POLL_INTERVAL_S))
        except KeyboardInterrupt:
            if run.hurry.is_set():
                return
            hurried = True
        if not run.hurry.is_set() and (hurried or is_immediate_end_asked(run.run_dir, begun)):
            run.hurry.set()
            until = time.monotonic() + HURRIED_ENDING_TIMEOUT_S


def complete_outcomes(stage: PlannedStage, outcomes: list[Outcome]) -> list[Outcome]:
    """One outcome for every node of the stage: a node about which the check said nothing is unknown."""
    by_node = {outcome.node: outcome for outcome in outcomes}
    return [by_node.get(node) or Outcome.unknown(node, no_outcome_finding(stage, node)) for node in stage.nodes]


def late_check_finding(stage: PlannedStage, node: str) -> Finding:
    """The finding about a node of a check that did not end in time."""
    says = f"{stage.name} did not end within {stage.timeout_s:g} s"
    return finding_for("insufficient-evidence", says, way="late", node=node)


def no_outcome_finding(stage: PlannedStage, node: str) -> Finding:
    """The finding about a node for which a check gave no outcome."""
    return finding_for("insufficient-evidence", f"{stage.check.id} said nothing about {node}", way="no-outcome")


def crash_finding(stage: PlannedStage, error: BaseException, run_dir: Path) -> Finding:
    """The finding about a node of a check that raised an error."""
    says = f"the check {stage.check.id} itself failed: {type(error).__name__}: {error}"
    seen = tuple("".join(traceback.format_exception(error)).strip().splitlines()[-6:])
    return finding_for("insufficient-evidence", says, seen, way="bug", run_dir=run_dir / "crash.txt")


def _clean_nodes(run: Run, interrupted: bool, reached: Sequence[PlannedStage]) -> str | None:
    """Ends everything of this run on every node. A sentence about it after an interrupt, or if processes were left, or
    nodes did not answer; else None.

    `reached` are the stages that ran, or began to, in that order.
    """
    closing = _run_in_thread(run.site.close, "closing")
    while not closing.done():  # another Ctrl-C must not cut the cleaning short, which has a deadline of its own
        with contextlib.suppress(KeyboardInterrupt):
            _wait_for_future(closing, math.inf)
    results = closing.result()
    if run.pool is not None:
        run.pool.close()
    unsure = [name for name, result in sorted(results.items()) if isinstance(result, BaseException)]
    left = [name for name, result in sorted(results.items()) if isinstance(result, dict) and result.get("left")]
    parts = []
    if interrupted:
        where = " on the other nodes" if left or unsure else ""
        parts.append(f"stopped and removed everything of this run{where}")
    if left:
        parts.append(f"could not end everything on {fold(left)}")
    if unsure:
        parts.append(f"{fold(unsure)} could not be asked: {_left_processes_text(run, unsure, reached)}")
    return "; ".join(parts) or None


def _left_processes_text(run: Run, nodes: Sequence[str], reached: Sequence[PlannedStage]) -> str:
    """In words, what becomes of this run's processes on nodes that did not answer at its end."""
    left_alone = [s for s in reached if s.skip is None and math.isinf(s.check.outlives_s) and {*nodes} & {*s.nodes}]
    if left_alone:
        job = run.run_id
        return f"the detached job may go on there; `runbook ps` shows it, `runbook stop {shell_word(job)}` ends it"
    later_s = max(0.0, run.site.patience_s - SILENCE_TIMEOUT_S)
    return f"what runs there ends by itself within {reached[-1].check.outlives_s + later_s:g} s"


SLURM_JOB_ENDED = "slurm-job-ended"
"""The cause of a session that is lost because Slurm ended its job."""
SLURM_KILL_CAUSES = frozenset({"terminated-from-outside", "rank-killed"})
"""The causes that are found for a process if Slurm ends its whole job."""

SLURM_SIGNAL_WINDOW_S = 1.5
"""Seconds within which Slurm signals all processes of a job that it ends, the supervisors included."""


def outcomes_after_slurm_end(run: Run, inventory: Inventory, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes; if Slurm ended the whole job, the nodes on which it did are unknown for that reason instead."""
    batch = {node.name for node in inventory.nodes if node.connection == "slurm"}
    sessions = {name: session for name, session in run.site.sessions.items() if name in batch}
    known = any(finding.cause == SLURM_JOB_ENDED for outcome in outcomes for finding in outcome.findings)
    suspects = [
        o.node for o in outcomes if o.node in sessions and any(f.cause in SLURM_KILL_CAUSES for f in o.findings)
    ]

    def over(name: str) -> Finding | None:
        lost = sessions[name].why_lost() if name in sessions else None
        return lost.finding if lost is not None and lost.cause == SLURM_JOB_ENDED else None

    deadline = time.monotonic() + SLURM_SIGNAL_WINDOW_S
    # Slurm knows that the job ends before its signals arrive; a program with a grace may keep its session for long.
    while not known and not any(map(over, suspects)) and time.monotonic() < deadline:
        if all(sessions[name].lost for name in suspects):
            break
        time.sleep(0.1)

    if not known and not any(map(over, suspects)):
        return list(outcomes)
    return [
        Outcome.unknown(o.node, finding) if o.verdict is not Verdict.PASS and (finding := over(o.node)) else o
        for o in outcomes
    ]
