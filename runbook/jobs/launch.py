"""How does a `launch` stage run the real job on the nodes that passed the checks, and with which cause does it end if
the job fails?"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from runbook.causes.catalogue import causes_of_kind, finding_for
from runbook.checks.base import Check, Environment
from runbook.checks.context import Context, Facts
from runbook.checks.network.live_traffic import Between, traffic_between_nodes
from runbook.checks.ranks.pool import dismiss_pool
from runbook.jobs import stop_attempt
from runbook.jobs.attempt import Attempt, ProcessSpec, make_attempt
from runbook.jobs.counters import CounterWatch
from runbook.jobs.failure import hidden_exception_texts, judge_attempt, process_end_finding
from runbook.jobs.kept_processes import KeptProcesses, user_stop_finding
from runbook.jobs.logs import RankLogs
from runbook.jobs.progress import MIN_FIRST_STEP_STALL_S, StepProgress
from runbook.jobs.rendezvous import NETWORK_LOOK_TIMEOUT_S, RendezvousWatch
from runbook.jobs.retry import judge_retry
from runbook.jobs.slowdown import SlowdownSearch
from runbook.jobs.stall import judge_stall, outcomes_of_stall
from runbook.jobs.start import (
    DEFAULT_START_TIMEOUT_S,
    KEEPER_KILL_TIMEOUT_S,
    Skew,
    measure_clocks,
    prepare,
    start_all_processes,
    wait_until_running,
)
from runbook.jobs.unheard import Unheard
from runbook.jobs.watch import HELD_UP_KINDS, Fetching, Lingering, WatchEnd, watch_processes
from runbook.launch.job import UNUSED_SPARE, Job
from runbook.launch.launchers import is_anchored_path, launcher_problems, nested_launcher_line
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Problem, Unreachable
from runbook.model.inventory import Node
from runbook.model.units import count_text, seconds_text
from runbook.model.verdict import Finding, Outcome, Verdict
from runbook.node.journal import STOPPED_BY_USER
from runbook.transport.node_sessions import REOPEN_TIMEOUT_S

PROGRESS_INTERVAL_S = 10.0
"""Seconds between two reports of a watched job's progress."""

STALL_OBSERVATION_S = 1.0
"""Seconds for which the ranks of a stalled job are observed. The kernel deals out CPU quotas ten times a second, so
this covers ten periods."""


MAX_BUSY_RANK_STALL_S = MIN_FIRST_STEP_STALL_S
"""Seconds that a rank may keep its peers waiting as long as it works, as in an evaluation or a checkpoint."""

DETACHED_WATCH_S = 10.0
"""Seconds for which a detached job is watched: most failures come at once."""


@dataclass(frozen=True)
class Launch(Check):
    """The `launch` stage. A playbook does not name it as a check: `launch` is a kind of stage of its own."""

    id: ClassVar[str] = "launch"
    timeout_s: ClassVar[float] = math.inf
    ends_by_itself: ClassVar[bool] = True
    names_bad_nodes: ClassVar[bool] = False

    job: Job = field(kw_only=True)

    @property
    def outlives_s(self) -> float:
        return (
            math.inf if self.job.launch.detach else super().outlives_s + self.job.launch.grace_s + KEEPER_KILL_TIMEOUT_S
        )

    @property
    def user_job(self) -> Job:
        return self.job

    @property
    def spares(self) -> tuple[str, ...]:
        return self.job.spares

    def with_spares(self, names: Sequence[str]) -> Launch:
        return replace(self, job=replace(self.job, spares=tuple(names)))

    @property
    def environments(self) -> tuple[Environment, ...]:
        return tuple(program.env for program in self.job.programs.values())

    def with_environments(self, changed: Callable[[Environment], Environment]) -> Launch:
        programs = {name: replace(one, env=changed(one.env)) for name, one in self.job.programs.items()}
        return replace(self, job=replace(self.job, programs=programs))

    @property
    def summary(self) -> str:
        return f"{self.job.launch.launcher}: {shlex.join(next(iter(self.job.programs.values())).command)}"

    def refused(self, stage: str, nodes: Sequence[Node]) -> Iterator[Problem]:
        if self.job.launch.detach and any(node.connection == "slurm" for node in nodes):
            message = f"`{stage}` is detached, but over Slurm everything that runbook starts ends when runbook ends"
            help = "leave out `detach:`, and start runbook itself from a batch script (sbatch)"
            yield Problem("playbook.detach-over-slurm", message, help=help)
        for workdir in dict.fromkeys(program.workdir for program in self.job.programs.values()):
            if workdir is not None and not is_anchored_path(workdir):
                message = (
                    f"`workdir: {workdir}` begins nowhere: on the nodes, a run has no folder of yours to begin from"
                )
                yield Problem(
                    "playbook.launch-workdir",
                    message,
                    self.job.span("workdir"),
                    "write it from the root or the home folder on, as in `~/work`",
                )
        # A run refuses Windows nodes itself, with a message of its own.
        yield from launcher_problems(self.job, [node for node in nodes if not node.windows])

    def run(self, at: Context) -> list[Outcome]:
        if nested := nested_launcher_line(self.job, at.nodes):
            says = f"every rank would start `{nested.name}`, and each of these a whole job of its own"
            finding = finding_for("world-size-mismatch", says, way="nested", launcher=nested.launcher)
            return [Outcome.failed(name, finding) for name in at.names]
        return [*self._attempts(at), *(Outcome.skipped(name, UNUSED_SPARE) for name in self.job.spares)]

    def _attempts(self, at: Context) -> list[Outcome]:
        """Makes attempts until one succeeds, no other is worth it, or nodes have to be replaced; the last one's
        outcomes."""
        dismiss_pool(at.run)  # the pool's ranks hold the port and the GPUs
        causes = at.run.tried.pop(at.stage, [])
        while True:
            at.run.attempts += 1
            attempt = make_attempt(self.job, at.inventory, len(causes) + 1, at.run.attempts)
            tried = RunningAttempt(at, attempt)
            outcomes = tried.run()
            tried.say_ends()
            if tried.stopped:
                return outcomes
            gone, stalled = tried.gone(outcomes), tried.stalled
            outcomes, after_s, leaving = judge_retry(at, attempt, outcomes, causes, stalled=stalled, gone=gone)
            if after_s is None or at.stopping.wait(after_s):
                return outcomes
            if leaving:
                at.run.tried[at.stage] = causes
                at.run.leaving.update(leaving)
                return outcomes
            _reconnect_lost_nodes(at)


def _reconnect_lost_nodes(at: Context) -> None:
    """Connects again to the nodes that were lost, and records those that stay unreachable."""
    for name, error in at.run.site.each(at.nodes, at.run.site.reopen, timeout_s=REOPEN_TIMEOUT_S).items():
        if isinstance(error, Unreachable):
            at.run.site.failures[name] = error


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a job was held up: findings by the node at fault, and the seconds without a step, or without the ranks
    having met. Without findings the job was not held up."""

    findings: Mapping[str, Sequence[Finding]] = field(default_factory=dict)
    seconds: float = 0.0


class RunningAttempt:
    """One attempt from its preparation to its end, or from the point at which another follower left it. `stalled`: the
    attempt was ended because it made no more steps. `stopped`: `runbook stop` ended it, so no further attempt is
    wanted."""

    def __init__(self, at: Context, attempt: Attempt) -> None:
        self._at = at
        self._attempt = attempt
        self._job = attempt.job
        self._skew: Skew | None = None
        logs = RankLogs(at.run.run_dir, attempt.folder, at.run.redactor, self._line, self._script_stopped)
        self._lingering = Lingering(self._job.launch.grace_s) if self._job.launch.launcher == "jax" else None
        self._progress = StepProgress(self._job.launch.watch) if self._job.launch.watch else None
        self._rendezvous = RendezvousWatch(attempt.inventory, self._job.launch.rendezvous_timeout_s)
        self.go_on_with(KeptProcesses(at, attempt.folder, attempt.places, logs))
        self._unheard = Unheard()
        self._stalls: list[str] = []
        self._talked = False
        self._warned: dict[str, list[str]] = {}  # by node
        self._unread: dict[str, list[str]] = {}
        self.stalled = False
        self.stopped = False
        self._rate_said_at = time.monotonic()

    def go_on_with(self, kept: KeptProcesses) -> None:
        """Watches the processes in `kept` from now on: this attempt's, as they were just found on the nodes."""
        self._kept = kept
        self._members = {member.place.name: member for member in kept.members}
        kept.steps = self._steps
        kept.logs.drawn = self._drawn

    def run(self) -> list[Outcome]:
        """Runs the attempt; its outcomes, with the warnings about each node added."""
        return [
            replace(
                one,
                warnings=(*one.warnings, *self._warned.get(one.node, ())),
                metrics={**one.metrics, **({"not_read": self._unread[one.node]} if one.node in self._unread else {})},
            )
            for one in self._run()
        ]

    def _run(self) -> list[Outcome]:
        """The work of `run`, without warnings: prepare, start, watch, end, fetch all logs, judge."""
        kept, at = self._kept, self._at
        at.say(
            f"attempt {self._attempt.number}: preparing {len(kept.nodes)} node{'s' * (len(kept.nodes) != 1)}, port "
            f"{self._attempt.port}",
            data={
                "attempt": {
                    "number": self._attempt.number,
                    "launcher": self._job.launch.launcher,
                    "logs": self._attempt.folder,
                }
            },
        )
        ready_s = self._job.launch.start_timeout_s or DEFAULT_START_TIMEOUT_S
        problems = prepare(
            kept, self._attempt, ready_s=ready_s, facts=self._about(), warn=self._warn
        ) or measure_clocks(kept, kept.nodes)
        if problems:
            if any(member.remote for member in kept.members):  # otherwise no keeper was started
                stop_attempt.end_processes(kept, grace_s=0.0, why="not every node was ready")
            self._clean(kept.nodes)
            return [problems.get(name) or _not_started_outcome(name, problems) for name in kept.nodes]
        self._make_files()
        unsure: list[str] = []
        with Fetching(kept), self._counting():
            self._skew = (
                start_all_processes(kept)
                if self._job.launch.barrier == "controller"
                else wait_until_running(kept, ready_s + 15.0)
            )
            if self._skew:
                says = f"all {len(kept.members)} processes started {self._skew} of each other"
                at.say(says, data={"skew_s": self._skew.seconds})
            deadline = time.monotonic() + DETACHED_WATCH_S if self._job.launch.detach else at.deadline
            end, stall = self.watch(deadline)
            if self._job.launch.detach and (end.kind == "late" or self._only_lost(end)):
                return self._detached()
            if end.first and end.first.keeper_gone:
                stop_attempt.learn_keeper_ends(kept)
            self.stopped = end.first is not None and end.first.by_user
            # The failure is reported at once: the verdict waits for the grace and for all output.
            if end.kind == "failed" and end.first:
                at.say(f"failed: {process_end_finding(kept, end.first).says}", node=end.first.place.node)
            frozen = stop_attempt.freeze(kept) if end.kind in ("failed", "late") else {}
            if end.kind != "finished" or not all(member.gone for member in kept.members):
                unsure = stop_attempt.end_processes(
                    kept, grace_s=self._job.launch.grace_s, why=_end_reason(end), hurry=at.hurry.is_set
                )
        left = sorted({*stop_attempt.fetch_rest_of_logs(kept), *unsure})
        self._clean([name for name in kept.nodes if name not in left])
        for name in left:
            at.say(f"part of the logs is still on {name}: {kept.folders[name]}", name)
        if end.kind == "failed":
            return judge_attempt(kept, end, frozen)
        if end.kind in HELD_UP_KINDS:
            return outcomes_of_stall(kept, stall.findings, stall.seconds)
        if end.kind == "finished":
            return self._finished(left)
        return [self._broken_off(end, name, unsure) for name in kept.nodes]

    def gone(self, outcomes: Sequence[Outcome]) -> dict[str, str]:
        """The nodes that the next attempt leaves out, each with the reason: the node is lost, or proven broken."""
        site, live = self._at.run.site, self._kept.live_nodes()
        silent = {
            name: site.sessions[name].lost if name in site.sessions else site.failures.get(name)
            for name in self._kept.nodes
            if name not in live
        }
        lost = {name: error.says if error else f"{name} is not reached" for name, error in silent.items()}
        broken = {
            one.node: finding.says
            for one in outcomes
            if one.verdict is Verdict.FAIL
            for finding in one.findings[:1]
            if finding.cause in causes_of_kind("of the node")
        }
        return lost | broken

    def say_ends(self) -> None:
        """Reports how each process of the attempt ended."""
        self._at.say("", data={"ends": {"number": self._attempt.number, "processes": self._kept.ends()}})

    def watch(
        self,
        deadline: float,
        stopping: Callable[[], bool] | None = None,
        on_loss: Callable[[str, Unreachable], None] | None = None,
    ) -> tuple[WatchEnd, Stall]:
        """Watches until the attempt ends, and says how it ended. If a stall ended it, or its ranks did not meet, the
        Stall holds the findings. With `on_loss`, each lost node is reported to it once and the other nodes are watched
        on. While a node is lost its ranks' steps are unknown, so no stall is reported."""
        stopping = self._stopping(stopping or self._at.stopping.is_set)
        self._rendezvous.begin()
        if self._progress:
            started = [member.started for member in self._kept.members if member.started is not None]
            self._progress.begin(max(0.0, time.time() - min(started, default=math.inf)))
        while True:
            end = watch_processes(
                self._kept, stopping=stopping, deadline=deadline, on_loss=on_loss, held_up=self._held_up
            )
            if end.kind not in HELD_UP_KINDS:
                return end, Stall()
            if self._rendezvous.due():
                if found := self._rendezvous.look(self._kept):
                    self._say_found("not met", found)
                    return WatchEnd("unmet"), Stall(found, self._rendezvous.seconds)
            elif self._progress and self._unheard.due(self._unheard_s):
                self._look_at_unheard()
            elif self._progress and (stall := self._look_at_stall(self._progress)):
                self.stalled = True
                return end, stall

    def _held_up(self) -> bool:
        """Whether it is time to look at every rank: they have not met, make no steps, or no step was ever heard."""
        progress = self._progress
        if progress:
            self._say_rate(progress)
            if progress.rate() is not None:
                self._rendezvous.met()
        if any(member.lost for member in self._kept.members):
            return False
        return self._rendezvous.due() or (
            progress is not None
            and (progress.stalled_s(self._kept.heard_until) is not None or self._unheard.due(self._unheard_s))
        )

    @property
    def _unheard_s(self) -> float | None:
        """The seconds for which no step was heard since the start; None if one was, or steps are not watched."""
        return self._progress.unheard_s(self._kept.heard_until) if self._progress else None

    def _look_at_unheard(self) -> None:
        """Looks at the ranks of a job whose steps were never heard. The result is only a warning: nothing is known
        about how long the work before a first step takes."""
        frozen = stop_attempt.freeze(self._kept, seconds=STALL_OBSERVATION_S)
        self._kept.take_news(0.0)
        unheard_s = self._unheard_s
        if unheard_s is None or not self._kept.living or any(member.failed for member in self._kept.members):
            return
        for nodes, finding in self._unheard.look(self._kept, frozen, unheard_s):
            self._warn(nodes, finding)

    def _look_at_stall(self, progress: StepProgress) -> Stall | None:
        """Looks at every rank of a job that makes no steps. The stall that ends the job; None when the job goes on."""
        assert self._job.launch.watch is not None
        self._at.say("no step for too long: looking at every rank")
        look = partial(stop_attempt.freeze, self._kept, seconds=STALL_OBSERVATION_S)
        judged = judge_stall(self._kept, progress, look, self._between)
        seconds = progress.stalled_s(self._kept.heard_until)
        self._kept.take_news(0.0)
        if seconds is None or not self._kept.living or any(member.failed for member in self._kept.members):
            return None  # meanwhile the job made a step, or failed
        why_not = judged.goes_on or (judged.works if self._job.launch.watch.stall_s is None else "")
        if why_not and seconds < MAX_BUSY_RANK_STALL_S:
            self._at.say(f"no stall yet: {why_not}")
            progress.allow(min(2 * seconds, MAX_BUSY_RANK_STALL_S))
            return None
        if judged.talks:  # its ranks still exchange data: look again later, and report this once
            progress.allow(2 * seconds)
            if self._talked:
                return None
            self._talked = True
        else:
            progress.stall_reported()
        found = judged.findings
        self._say_found("stalled", found)
        if self._job.launch.watch.on_stall != "report" and not judged.talks:
            return Stall(found, seconds)
        self._stalls += [finding.says for findings in found.values() for finding in findings]
        return None

    def _between(self) -> Between:
        """The state of the network between the nodes now; empty where all of them are one machine."""
        at = replace(self._at, inventory=self._attempt.inventory)
        return Between() if at.inventory.one_machine else traffic_between_nodes(at, timeout_s=NETWORK_LOOK_TIMEOUT_S)

    def _say_found(self, what: str, found: Mapping[str, Sequence[Finding]]) -> None:
        """Reports these findings at once: ending the job takes as long as its grace."""
        for node, findings in found.items():
            for finding in findings:
                self._at.say(f"{what}: {finding.says}; {finding.remedy}", node=node, data={"stall": finding.cause})

    def _stopping(self, stopping: Callable[[], bool]) -> Callable[[], bool]:
        """`stopping`, wrapped. It is called again and again while the ranks run, so each call also looks for a
        process that raised an exception and lingers."""

        def look() -> bool:
            if self._lingering and (found := self._lingering.who()):
                name, exception = found
                self._members[name].gave_up = exception
            return stopping()

        return look

    def _counting(self) -> contextlib.AbstractContextManager[object]:
        """A context that watches the nodes' counters and warns; it does nothing if the job is detached or has no
        `watch:`."""
        if self._job.launch.watch is None or self._job.launch.detach:
            return contextlib.nullcontext()
        counters = CounterWatch(self._kept, self._warn, self._say_unread)
        if self._progress:
            counters.after_reading = SlowdownSearch(
                self._kept, self._progress.step_times, counters, self._warn, self._at.say
            ).look
        return counters

    def _warn(self, nodes: Sequence[str], finding: Finding) -> None:
        """Records and reports a warning about these nodes. Several nodes share one event, which names no node."""
        text = f"{finding.cause}: {finding.says}; {finding.remedy}"
        for node in nodes:
            self._warned.setdefault(node, []).append(text)
        facts = {"warning": finding.cause, "evidence": list(finding.evidence)}
        self._at.say(text, node=nodes[0] if len(nodes) == 1 else None, data=facts)

    def _say_unread(self, node: str, what: str) -> None:
        self._unread.setdefault(node, []).append(what)
        self._at.say(f"not read on {node}: {what}", node)

    def _say_rate(self, progress: StepProgress) -> None:
        """Reports the job's rate of steps, at most every PROGRESS_INTERVAL_S."""
        rate = progress.rate()
        if rate is not None and time.monotonic() - self._rate_said_at > PROGRESS_INTERVAL_S:
            self._rate_said_at = time.monotonic()
            facts = {rate.unit: rate.step, "per_s": rate.per_s, "age_s": round(rate.age_s, 1)}
            self._at.say(f"{rate}, {seconds_text(rate.age_s)} ago", data={"pace": facts})

    def _steps(self, node: str, steps: Mapping[str, str]) -> None:
        """Takes the contents of step files of a node, by the names of its processes."""
        if self._progress:
            ranks = {m.place.name: m.place.rank for m in self._kept.on(node)}
            self._progress.written(steps, ranks, late=node in self._kept.late)

    def _clean(self, names: Collection[str]) -> None:
        """Removes the job's files from these nodes. With `--keep` they stay until `runbook clean` removes them."""
        if not self._at.run.site.keep:
            stop_attempt.clean(self._kept, names)

    def _make_files(self) -> None:
        """Creates every process's log files at the start: an empty file says that the process wrote nothing."""
        voices = [voice for member in self._kept.members for voice in member.place.voices]
        self._kept.logs.begin(f"{voice.name}.{end}" for voice in voices for end in ("out", "err"))

    def _about(self) -> Facts:
        """The facts about the run that every node stores with the job."""
        run = self._at.run
        return {"job": run.run_id, "run_dir": str(run.run_dir), "began": time.time(), "made_from": list(run.made_from)}

    def _finished(self, left: list[str]) -> list[Outcome]:
        """The outcomes of an attempt that ended well; `left` names nodes that still have a part of the logs."""
        kept, number = self._kept, self._attempt.number
        seconds = kept.seconds
        proof = f"{count_text(kept.ranks, 'rank')} ended with code 0 after {seconds_text(seconds)}{self._details()}"
        metrics = {"attempts": number, "seconds": round(seconds, 3), "skew_s": self._skew and self._skew.seconds}
        return [
            Outcome.passed(
                name,
                proof,
                metrics=metrics,
                warnings=[
                    *(f"stalled once: {says}" for says in dict.fromkeys(self._stalls)),
                    *([f"part of the logs is still on {name}: {kept.folders[name]}"] if name in left else []),
                    *hidden_exception_texts(kept, name),
                ],
            )
            for name in kept.nodes
        ]

    def _detached(self) -> list[Outcome]:
        """The outcomes of a detached job, which goes on by itself and keeps its state on the nodes. A node that is no
        longer reached is unknown: a lost connection does not end a job that is meant to outlive it."""
        job = self._at.run.run_id
        proof = (
            f"{self._kept.ranks} ranks run by themselves now{self._details()}; "
            f"`runbook ps`, `runbook logs -f {shell_word(job)}`, `runbook stop {shell_word(job)}`"
        )
        metrics = {"attempts": self._attempt.number, "job": job, "skew_s": self._skew and self._skew.seconds}
        lost = {member.place.node: member.lost for member in self._kept.members if member.lost}
        return [
            Outcome.unknown(name, why.finding, metrics=metrics)
            if (why := lost.get(name))
            else Outcome.passed(name, proof, metrics=metrics)
            for name in self._kept.nodes
        ]

    def _only_lost(self, end: WatchEnd) -> bool:
        """Whether every failure is a lost connection to a node."""
        failed = [member for member in self._kept.members if member.failed]
        return end.kind == "failed" and all(member.lost for member in failed)

    def _details(self) -> str:
        again = f", at attempt {self._attempt.number}" if self._attempt.number > 1 else ""
        return f"{again}; started {self._skew} of each other" if self._skew else again

    def _broken_off(self, end: WatchEnd, name: str, unsure: Collection[str]) -> Outcome:
        """The outcome of a node if the attempt was stopped, or the time was up."""
        if end.kind == "stopped":
            may_go_on = self._job.launch.detach and name in unsure  # a follower of the run ends the ranks there
            metrics = {"job": self._at.run.run_id} if may_go_on else {}
            return Outcome.unknown(name, user_stop_finding(self._kept), metrics=metrics)
        lived = len([member for member in self._kept.members if member.journal.get("why")])
        says = (
            f"the job did not end within the stage's `timeout:`; {lived} of {len(self._kept.members)} processes lived, "
            "and were ended"
        )
        finding = finding_for("insufficient-evidence", says, (f"logs: {self._kept.logs.folder}",), way="job-late")
        return Outcome.failed(name, finding)

    def heard(self, place: ProcessSpec, stream: str, lines: list[str]) -> None:
        """Takes the lines that a process printed: they may show its step, or an exception that it raised."""
        if self._progress:
            self._progress.heard(place.rank, lines, late=place.node in self._kept.late)
        if self._lingering:
            self._lingering.heard(place.name, stream, lines)

    def _drawn(self, place: ProcessSpec, bar: str) -> None:
        """Takes the text of a progress bar, which may show a step."""
        if self._progress:
            self._progress.heard(place.rank, [bar], late=place.node in self._kept.late)

    def _line(self, place: ProcessSpec, stream: str, lines: list[str]) -> None:
        """Takes and reports lines that a process printed."""
        self.heard(place, stream, lines)
        output = {"name": place.name, "ranks": list(place.ranks), "stream": stream, "lines": lines}
        self._at.say("", node=place.node, rank=place.ranks[0], data={"output": output})

    def _script_stopped(self, place: ProcessSpec, event: Mapping[str, Any]) -> None:
        """Notes why a launch script stopped before it started anything."""
        if member := self._members.get(place.name):  # a rank that a launcher started may print a line like ours
            member.stop = event


def _end_reason(end: WatchEnd) -> str:
    """In words, why runbook ends the processes of an attempt."""
    if end.kind == "failed" and end.first is not None:
        return f"{end.first.label} failed"
    return {
        "stopped": STOPPED_BY_USER,
        "stalled": "the training made no steps any more",
        "unmet": "its ranks do not meet",
        "finished": "its rank has ended",
    }.get(end.kind, "the time is up")


def _not_started_outcome(node: str, problems: Mapping[str, Outcome]) -> Outcome:
    """The outcome of a node that was ready while others were not."""
    names = tuple(sorted(problems))
    says = f"{node} was ready, and nothing was started because of {', '.join(names[:4])}"
    return Outcome.unknown(node, finding_for("peer-died", says, (), names, node=names[0]))
