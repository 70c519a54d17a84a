"""Follows a job until it has ended, however often its nodes fall silent.

A node that is not reached is asked again until it answers. So a program between the controller and the nodes, such as
the server that agents dial, may end and come back: the ranks do not notice, and their logs arrive in full. `retries:`,
`spares:` and `watch:` of the launch apply as they do while `runbook run` stays with a launch.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from runbook.causes.catalogue import finding_for
from runbook.checks.context import Context, Run
from runbook.checks.ranks.pool import dismiss_pool
from runbook.jobs.attach import kept_processes_of, supervise_job
from runbook.jobs.attempt import Attempt, ProcessSpec, make_attempt
from runbook.jobs.kept_processes import ENDED_STATE, KeptProcesses, user_stop_finding
from runbook.jobs.known_jobs import JOB_UNKNOWN_TEXT, Cluster, KnownJob, clean, names_of_living, stop
from runbook.jobs.launch import RunningAttempt, Stall
from runbook.jobs.logs import RankLogs, job_secrets
from runbook.jobs.retry import judge_retry
from runbook.jobs.start import STACKS_FOLDER
from runbook.jobs.stop_attempt import fetch_rest_of_logs
from runbook.jobs.watch import HELD_UP_KINDS, WatchEnd, watch_processes
from runbook.launch.job import Job
from runbook.launch.ranks import narrow_inventory
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory
from runbook.model.redact import Redactor
from runbook.model.units import count_text, seconds_text
from runbook.model.verdict import Outcome, Verdict
from runbook.node.journal import attempt_folder, serial_of
from runbook.transport.agent import SERVER_GONE
from runbook.transport.node_sessions import Site

RECONNECT_INTERVALS_S = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before nodes that were not reached are asked again: the first time, the second, and so on."""
LOST_NODE_RETRY_INTERVAL_S = 15.0
"""Seconds for which the other nodes are followed before the nodes that are not reached are asked again."""
SILENT_NODES_TIMEOUT_S = 120.0
"""Seconds for which a job that has failed, or is to end, waits for nodes that do not answer."""
SILENT_AFTER_SUCCESS_TIMEOUT_S = 3600.0
"""The same wait when all ranks whose end is known have ended well: the other ranks may have ended well too, and their
nodes may come back."""
ALL_SILENT_TIMEOUT_S = 86400.0
"""Seconds for which a job is followed while no node answers for it."""

EventCallback = Callable[..., None]
"""Called with what happens: text, node, rank and facts, as in the events of a run."""


class Replacing(Protocol):
    """The spares of a launch, as `engine.bad_nodes` provides them."""

    @property
    def gone(self) -> Collection[str]:
        """The nodes that spares have replaced."""

    def launch_without(self, run: Run, leaving: Mapping[str, str]) -> tuple[Job, Inventory] | None:
        """The launch with spares in the places of the `leaving` nodes, each given with the reason; None when too few
        spares are left that pass the checks."""

    def with_why_not(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of an attempt, with the reason why no spare could take over added."""


@dataclass(frozen=True)
class Launched:
    """What is needed to launch the job again. `inventory` has the nodes of the job's stage. `causes`: the causes of the
    attempts that have failed, by the names of their folders."""

    job: Job
    inventory: Inventory
    made_from: tuple[str, ...]
    redactor: Redactor
    causes: dict[str, str]
    spares: Replacing


class Follower:
    """Follows the job `id`. `run_dir` is its run folder, `stage` the name of the stage that launched it. `say` is
    called with everything that happens: text, node, rank and facts, as in the events of a run. `leaving`: this follower
    is to end while the job goes on; `ending`: the job itself is to end. Without `launched` there are no retries."""

    def __init__(
        self,
        inventory: Inventory,
        id: str,
        run_dir: Path,
        stage: str,
        *,
        say: EventCallback,
        leaving: threading.Event,
        ending: Callable[[], bool],
        launched: Launched | None = None,
        forks: int = 64,
    ) -> None:
        self._whole = inventory
        self._id = id
        self._run_dir = run_dir
        self._stage = stage
        self._say = say
        self._leaving = leaving
        self._ending = ending
        self._launched = launched
        self._forks = forks
        self._logs: RankLogs | None = None
        self._try: RunningAttempt | None = None
        self._attempt = ""
        self._serial = 0
        self._held_up: list[Outcome] = []
        self._silent: dict[str, str] = {}  # nodes that do not answer, and why
        self._leave_out: Mapping[str, str] = {}  # nodes for which spares come in the next attempt, and why
        self._replaced = ReplacedNodes(inventory, id, run_dir, say, forks, launched.redactor if launched else None)
        self._replaced.add(launched.spares.gone if launched else ())
        self._since: float | None = None  # when all ranks on nodes that are reached had ended
        self._heard = time.monotonic()

    def follow(self, nodes: Sequence[str]) -> list[Outcome] | None:
        """One outcome for each node of the job, once it has ended; None if this follower leaves before that, or if
        somebody has removed the run folder. Logs are appended in the run folder; the job's files are removed from the
        nodes once all logs are here. `nodes`: the nodes of the launch. Raises FilesWrong if no node knows the job."""
        with self._replaced:
            outcomes = self._follow(nodes)
        if outcomes is not None:
            self._replaced.ask()
            for name in self._replaced.left:
                self._say(
                    f"{name} was replaced, and does not answer: ranks of an earlier attempt may still run there", name
                )
        return outcomes

    @property
    def _inventory(self) -> Inventory:
        """The inventory without the nodes that spares have replaced: the files there belong to an earlier attempt."""
        gone = self._launched.spares.gone if self._launched else ()
        return narrow_inventory(self._whole, [node for node in self._whole.nodes if node.name not in gone])

    def _follow(self, nodes: Sequence[str]) -> list[Outcome] | None:
        """The work of `follow`, without the replaced nodes."""
        tries = 0
        while not self._is_leaving():
            before = time.monotonic()
            outcomes, after_s = self._ask() or ([], None)
            if after_s is not None:
                outcomes = self._launch_again(after_s, outcomes) or []
            if outcomes and not _is_detached_job(outcomes):
                if after_s is not None:
                    self._clean()
                return outcomes
            silent_s = time.monotonic() - self._heard
            if silent_s > (SILENT_NODES_TIMEOUT_S if self._ending() else ALL_SILENT_TIMEOUT_S):
                return [_silent_node_outcome(name, silent_s) for name in nodes]
            tries = 0 if time.monotonic() - before > LOST_NODE_RETRY_INTERVAL_S else tries + 1
            self._leaving.wait(RECONNECT_INTERVALS_S[min(tries, len(RECONNECT_INTERVALS_S) - 1)])
        return None

    def _is_leaving(self) -> bool:
        """Whether this follower is to end. A run folder that was removed counts as well: without it nothing of the run
        can be stored, and nobody waits for it."""
        if not self._run_dir.exists():
            self._leaving.set()
        return self._leaving.is_set()

    def _ask(self) -> tuple[list[Outcome], float | None] | None:
        """Connects to the nodes, and gives the result of `_look`; None also if no node is reached."""
        with Cluster(self._inventory, forks=self._forks) as cluster, contextlib.suppress(Unreachable):
            ended = self._look(cluster)
            self._heard = time.monotonic()
            return ended
        return None

    def _clean(self) -> None:
        with Cluster(self._inventory, forks=self._forks) as cluster, contextlib.suppress(Unreachable, FilesWrong):
            clean(cluster, cluster.job(self._id))

    def _look(self, cluster: Cluster) -> tuple[list[Outcome], float | None] | None:
        """Follows the nodes that answer. Once the attempt has ended: its outcomes, and the seconds until the next
        attempt, None for no further one. None while its end is not known. Raises Unreachable, FilesWrong."""
        job = cluster.job(self._id)
        removed = self._removed(cluster, job)
        self._say_silent(cluster, job, removed)
        kept, tried = self._kept(cluster, job)
        if kept.living:
            self._since = None  # ranks were reached again that had been silent
        lost = {name: time.monotonic() for name in job.absent if name not in removed}

        def on_loss(node: str, error: Unreachable) -> None:
            lost[node] = time.monotonic()
            self._tell_silent(node, error.says)

        def enough() -> bool:
            return self._is_leaving() or any(time.monotonic() - at > LOST_NODE_RETRY_INTERVAL_S for at in lost.values())

        def watched() -> tuple[WatchEnd, Stall]:
            if tried is not None:
                return tried.watch(math.inf, enough, on_loss)
            return watch_processes(kept, stopping=enough, deadline=math.inf, on_loss=on_loss), Stall()

        end, outcomes, left = supervise_job(kept, grace_s=job.grace_s, watched=watched, leaving=self._leaving.is_set)
        if end.kind in ("stopped", "lost") or self._leaving.is_set():
            return None
        if end.kind in HELD_UP_KINDS:
            self._held_up = outcomes  # ranks that a stall ended look, at the next look, as if the user had stopped them
        outcomes = self._held_up or outcomes
        stopped = end.kind == "failed" and not self._held_up and _is_stopped_on_request(kept, ending=self._ending())
        if (left or lost) and not self._waited_enough(well=end.kind == "finished"):
            return None
        if not outcomes or stopped:
            outcomes = _outcomes_of_end(kept, stopped, serial_of(job.attempt))
        self._say("", data={"ends": {"number": serial_of(job.attempt), "processes": kept.ends()}})
        silent_s = time.monotonic() - (self._since or time.monotonic())
        by_node = {one.node: one for one in outcomes if one.node not in lost or one.verdict is Verdict.FAIL}
        by_node |= {name: Outcome.unknown(name, user_stop_finding(kept)) for name in removed}
        outcomes = [by_node.get(name) or _silent_node_outcome(name, silent_s) for name in job.nodes]
        gone = self._gone(outcomes, end, lost)
        after_s = None if stopped or self._ending() else self._judge_retry(kept, job, outcomes, gone)
        if after_s is None and not left and not lost:
            clean(cluster, job)
        return outcomes, after_s

    def _kept(self, cluster: Cluster, job: KnownJob) -> tuple[KeptProcesses, RunningAttempt | None]:
        """The processes of the job's latest attempt and, where the job may be launched again, the object that watches
        them. Logs of the same attempt go on where the look before ended."""
        if job.attempt != self._attempt:
            self._attempt, self._serial, self._logs, self._try = job.attempt, serial_of(job.attempt), None, None
            self._held_up, self._since = [], None

        def tell(place: ProcessSpec, stream: str, lines: list[str]) -> None:
            if self._try is not None:
                self._try.heard(place, stream, lines)

        launched = self._launched
        secrets = job_secrets(cluster, job, launched.redactor if launched else None)
        kept = kept_processes_of(cluster, job, self._run_dir, tell, secrets, goes_on=True)
        kept.logs = self._logs = self._logs or kept.logs
        kept.logs.learn(secrets.of_nodes)  # a node may have been silent in the first look
        if launched is None:
            return kept, None
        kept.at = replace(kept.at, say=self._say)
        if self._try is None:
            self._try = RunningAttempt(kept.at, self._attempt_of(launched))
        if launched.job.stacks:
            kept.stacks = {name: f"{folder}/{STACKS_FOLDER}" for name, folder in kept.folders.items()}
        self._try.go_on_with(kept)
        return kept, self._try

    def _attempt_of(self, launched: Launched) -> Attempt:
        """The attempt with this follower's serial, of a job that may be launched again."""
        before = [folder for folder in launched.causes if serial_of(folder) < self._serial]
        return make_attempt(launched.job, launched.inventory, len(before) + 1, self._serial)

    def _gone(self, outcomes: Sequence[Outcome], end: WatchEnd, lost: Collection[str]) -> dict[str, str]:
        """The nodes that the next attempt has to leave out, each with the reason. If all ranks whose end is known ended
        well, no node is left out: the other ranks may have ended well too."""
        if self._try is None or end.kind == "finished":
            return {}
        return {name: self._silent.get(name, f"{name} does not answer") for name in lost} | self._try.gone(outcomes)

    def _judge_retry(
        self, kept: KeptProcesses, job: KnownJob, outcomes: list[Outcome], gone: Mapping[str, str]
    ) -> float | None:
        """The seconds until the next attempt, None for no further one; the reason is added to `outcomes`."""
        launched = self._launched
        if launched is None:
            return None
        earlier = sorted((folder for folder in launched.causes if folder != job.attempt), key=serial_of)
        causes = [launched.causes[folder] for folder in earlier]
        at, attempt = replace(kept.at, say=self._say), self._attempt_of(launched)
        stalled = self._try is not None and self._try.stalled
        outcomes[:], after_s, self._leave_out = judge_retry(at, attempt, outcomes, causes, stalled=stalled, gone=gone)
        if after_s is not None:
            launched.causes[job.attempt] = causes[-1]
        return after_s

    def _launch_again(self, after_s: float, outcomes: list[Outcome]) -> list[Outcome] | None:
        """Makes another attempt after one with these outcomes, and further ones as long as they fail at once; the last
        attempt's outcomes. None if this follower leaves, or the job is to end. If the server that agents dial ends
        meanwhile, that is no failure: the attempt is made once the server is back."""
        while not self._leaving.wait(after_s) and not self._ending():
            launched = self._launched
            assert launched is not None
            with contextlib.ExitStack() as stack:
                site = Site(self._id, forks=self._forks, inventory=self._whole.source, again=True)
                stack.callback(site.close)
                run = Run(self._id, self._run_dir, site, attempts=self._serial + 1, made_from=launched.made_from)
                run.redactor, run.stopping = launched.redactor, self._leaving
                site.open([node for node in launched.inventory.nodes if node.name not in self._leave_out])
                if self._leave_out:
                    taken = self._take_over(launched, run)
                    if taken is None and _is_server_gone(site):
                        after_s = RECONNECT_INTERVALS_S[-1]
                        continue
                    if taken is None:
                        return launched.spares.with_why_not(outcomes)
                    launched = taken
                self._serial += 1
                attempt = self._attempt_of(launched)
                at = Context(run, launched.inventory, self._stage, math.inf, self._say)
                tried = RunningAttempt(at, attempt)
                outcomes = tried.run()
                tried.say_ends()
            self._heard = time.monotonic()
            if _is_detached_job(outcomes) or self._leaving.is_set():
                return outcomes
            if any(finding.cause == SERVER_GONE for one in outcomes for finding in one.findings):
                after_s = RECONNECT_INTERVALS_S[-1]
                continue
            gone, stalled = tried.gone(outcomes), tried.stalled
            causes = [launched.causes[folder] for folder in sorted(launched.causes, key=serial_of)]
            outcomes, wait_s, leaving = judge_retry(at, attempt, outcomes, causes, stalled=stalled, gone=gone)
            if wait_s is None:
                return outcomes
            self._leave_out = leaving
            launched.causes[attempt_folder(self._serial)], after_s = causes[-1], wait_s
        return None

    def _take_over(self, launched: Launched, run: Run) -> Launched | None:
        """The launch with spares in the places of the nodes that are left out; None if no spares can take over."""
        taken = launched.spares.launch_without(run, self._leave_out)
        dismiss_pool(run)  # the pool's ranks hold the port and the GPUs
        if taken is None:
            return None
        self._replaced.add(self._leave_out)
        self._leave_out = {}
        self._launched = replace(launched, job=taken[0], inventory=taken[1])
        return self._launched

    def _removed(self, cluster: Cluster, job: KnownJob) -> list[str]:
        """The nodes that answer and no longer know a job that is to end: a job's files are removed only once its
        processes have ended."""
        return [name for name in job.absent if name not in cluster.unreached] if self._ending() else []

    def _say_silent(self, cluster: Cluster, job: KnownJob, removed: Collection[str]) -> None:
        """Reports the nodes that have fallen silent, and those that answer again."""
        silent = [name for name in job.absent if name not in removed]
        for name in [name for name in self._silent if name not in silent]:
            del self._silent[name]
            self._say(f"{name} answers again", node=name, data={"silent": {name: False}})
        for name in silent:
            error = cluster.unreached.get(name)
            self._tell_silent(name, error.says if error else JOB_UNKNOWN_TEXT)

    def _tell_silent(self, name: str, says: str) -> None:
        if name not in self._silent:
            self._silent[name] = says
            text = f"{name} does not answer, and what runs there goes on: {says}"
            self._say(text, node=name, data={"silent": {name: True}})

    def _waited_enough(self, *, well: bool) -> bool:
        """Whether silent nodes were waited for long enough since all other ranks of the job had ended. `well`: all
        ranks whose end is known ended well."""
        self._since = self._since or time.monotonic()
        return time.monotonic() - self._since > (
            SILENT_AFTER_SUCCESS_TIMEOUT_S if well and not self._ending() else SILENT_NODES_TIMEOUT_S
        )


def _is_server_gone(site: Site) -> bool:
    """Whether a node is not reached because the server that the agents dial is down."""
    lost = [*site.failures.values(), *(one.lost for one in site.sessions.values() if one.lost)]
    return any(error.cause == SERVER_GONE for error in lost)


def _is_detached_job(outcomes: Sequence[Outcome]) -> bool:
    """Whether these outcomes are those of a detached job, whose ranks run by themselves now."""
    return any("job" in outcome.metrics for outcome in outcomes)


def _outcomes_of_end(kept: KeptProcesses, stopped: bool, number: int) -> list[Outcome]:
    """The outcomes of a job that ended well, or was stopped. `number`: the attempt that ended."""
    if stopped:
        return [Outcome.unknown(name, user_stop_finding(kept)) for name in kept.nodes]
    again = f", at attempt {number}" if number > 1 else ""
    well = sum(len(member.place.ranks) for member in kept.members if member.state == ENDED_STATE and member.code == 0)
    of = "" if well == kept.ranks else f"{well} of "
    proof = f"{of}{count_text(kept.ranks, 'rank')} ended with code 0 after {seconds_text(kept.seconds)}{again}"
    metrics = {"attempts": number, "seconds": round(kept.seconds, 3)}
    return [Outcome.passed(name, proof, metrics=metrics) for name in kept.nodes]


def _is_stopped_on_request(kept: KeptProcesses, *, ending: bool) -> bool:
    """Whether all processes that did not end well were stopped by `runbook stop`, or by the run that had started them.
    `ending`: the job is to end; then a killed keeper, which recorded nothing, counts as stopped as well."""
    failed = [member for member in kept.members if member.failed and not member.lost]
    stopped = [member for member in failed if member.by_user or (ending and member.keeper_gone)]
    # When the first process is stopped, a follower ends the others: `by_runbook` holds for those.
    return bool(stopped) and all(member in stopped or member.by_runbook for member in failed)


def _silent_node_outcome(node: str, silent_s: float) -> Outcome:
    """The outcome of a node that has not answered for so many seconds."""
    says = f"{node} has not answered for {seconds_text(silent_s)}; how its ranks ended is not known: they may still run"
    return Outcome.unknown(node, finding_for("insufficient-evidence", says, way="job-silent", node=node))


REPLACED_THREAD_TIMEOUT_S = 5.0
"""Seconds for which the end of a `ReplacedNodes` block waits for an answer that is under way. A node that has not
answered by then is reported as left."""
REPLACED_NODES_INTERVAL_S = 30.0
"""Seconds before the replaced nodes are asked again."""


class ReplacedNodes:
    """Nodes of the job `id` that spares have replaced. A node that did not answer when it was replaced may still run
    ranks of an earlier attempt. Once the node answers again, these ranks are ended, their logs are fetched into
    `run_dir` and their files are removed. While the `with` block lasts, all replaced nodes are asked every
    REPLACED_NODES_INTERVAL_S. `say` is called with everything that happens, as in the events of a run. `redactor`: that
    of the launch, if it is known."""

    def __init__(
        self, inventory: Inventory, id: str, run_dir: Path, say: EventCallback, forks: int, redactor: Redactor | None
    ) -> None:
        self._inventory = inventory
        self._id = id
        self._run_dir = run_dir
        self._say = say
        self._forks = forks
        self._redactor = redactor
        self._left: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="replaced", daemon=True)

    def add(self, names: Iterable[str]) -> None:
        """Adds nodes that spares have replaced."""
        self._left = {*self._left, *names}

    def __enter__(self) -> ReplacedNodes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(REPLACED_THREAD_TIMEOUT_S)

    @property
    def left(self) -> tuple[str, ...]:
        """The replaced nodes that may still have ranks or files of the job."""
        return tuple(sorted(self._left))

    def _ask_on(self) -> None:
        while not self._over.wait(REPLACED_NODES_INTERVAL_S):
            self.ask()

    def ask(self) -> None:
        """Asks each replaced node once, unless the thread that asks them regularly still runs."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            return
        for name in self.left:
            with contextlib.suppress(Unreachable):
                if self._over_on(name):
                    self._left.discard(name)

    def _over_on(self, name: str) -> bool:
        """Ends the job's processes on a node, fetches their logs and removes the files; whether nothing is left there.
        Raises Unreachable."""
        node = self._inventory.node(name)
        with Cluster(narrow_inventory(self._inventory, [node]), forks=self._forks) as cluster:
            try:
                job = cluster.job(self._id)
                if names_of_living(job):
                    ended = f"what ran there of {job.attempt} is ended: it was replaced"
                    self._say(f"{name} answers again, and {ended}", name)
                    stop(cluster, job, why="its node was replaced")
                    job = cluster.job(self._id)
            except FilesWrong:
                return True  # the job's files there have been removed
            secrets = job_secrets(cluster, job, self._redactor)
            kept = kept_processes_of(cluster, job, self._run_dir, lambda *_: None, secrets, goes_on=True)
            return not fetch_rest_of_logs(kept) and clean(cluster, job).removed == [name]
