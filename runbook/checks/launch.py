"""launch: a stage that runs the real job on the nodes that just passed the checks, and ends with a cause if it fails."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from runbook.checks.base import Check
from runbook.checks.context import Context, Facts
from runbook.checks.ranks.gang import dismiss_gang
from runbook.checks.training import ending
from runbook.checks.training.attempt import Attempt, Place, make_attempt
from runbook.checks.training.crew import Crew
from runbook.checks.training.logs import RankLogs
from runbook.checks.training.prepare import READY_S, prepare
from runbook.checks.training.retry import decide
from runbook.checks.training.start import commit, measure_clocks
from runbook.checks.training.verdict import judge_attempt
from runbook.checks.training.watch import End, Fetching, watch
from runbook.launch.job import Job
from runbook.model.errors import Unreachable
from runbook.model.inventory import Node
from runbook.model.units import seconds_text
from runbook.model.verdict import Finding, Outcome, Verdict

GRACE_S = 30.0
"""From TERM to KILL: what a program may need to write its checkpoint."""

HURRIED_S = 3.0


@dataclass(frozen=True)
class Launch(Check):
    """Not one of the checks that a playbook names: a stage of its own kind."""

    id: ClassVar[str] = "launch"
    timeout_s: ClassVar[float] = math.inf
    ends_by_itself: ClassVar[bool] = True

    job: Job = field(kw_only=True)

    def run(self, at: Context) -> list[Outcome]:
        dismiss_gang(at.run)  # its ranks hold the port and the GPUs
        causes: list[str] = []
        while True:
            attempt = make_attempt(self.job, at.inventory, len(causes) + 1)
            outcomes = _Try(at, attempt).run()
            bad = [outcome for outcome in outcomes if outcome.verdict in (Verdict.FAIL, Verdict.UNKNOWN)]
            if not bad or at.stopping.is_set():
                return outcomes
            failed = [outcome for outcome in bad if outcome.verdict is Verdict.FAIL] or bad
            guilty = next((o for o in failed if o.findings[0].cause != "peer-died"), failed[0])
            causes.append(guilty.findings[0].cause)
            decision = decide(causes, self.job.retries)
            if decision.why:
                at.say(
                    f"attempt {attempt.number} failed on {guilty.node}: {guilty.findings[0].says}; {decision.why}",
                    guilty.node,
                )
            if not decision.again:
                return outcomes
            if at.stopping.wait(decision.after_s):
                return outcomes
            for node in at.nodes:
                try:
                    at.run.site.reopen(node)
                except Unreachable as error:
                    at.run.site.failures[node.name] = error


class _Try:
    """One attempt from its preparation to its end."""

    def __init__(self, at: Context, attempt: Attempt) -> None:
        self._at = at
        self._job = attempt.job
        self._stops: dict[str, Mapping[str, Any]] = {}
        logs = RankLogs(at.run.run_dir / "logs" / attempt.folder, at.run.redactor, self._line, self._script_stopped)
        self._crew = Crew(at, attempt, logs)

    def run(self) -> list[Outcome]:
        crew, at = self._crew, self._at
        at.say(f"attempt {crew.attempt.number}: preparing {len(crew.nodes)} nodes, rendezvous port {crew.attempt.port}")
        facts: Facts = {
            "job": at.run.run_id,
            "run_dir": str(at.run.run_dir),
            "began": time.time(),
            "made_from": list(at.run.made_from),
        }
        problems = prepare(
            crew,
            grace_s=self._job.grace_s,
            ready_s=self._job.start_timeout_s or READY_S,
            facts=facts,
            barrier=self._barrier,
        )
        if problems:
            ending.end(crew, grace_s=0.0, why="not every node was ready")
            ending.clean(crew)
            return [problems.get(name) or Outcome.unknown(name, _not_started(name, problems)) for name in crew.nodes]
        try:
            measure_clocks(crew)
        except Unreachable as error:
            ending.end(crew, grace_s=0.0, why="a node was lost before the start")
            lost = Finding(error.cause, error.says, error.remedy, error.evidence)
            return [Outcome.unknown(name, lost) for name in crew.nodes]
        with Fetching(crew):
            skew = commit(crew)
            if skew:
                at.say(
                    f"all {len(crew.members)} processes started {skew} of each other",
                    None,
                    None,
                    {"skew_s": skew.seconds},
                )
            end = watch(crew, stopping=at.stopping.is_set, deadline=at.deadline)
            frozen = ending.freeze(crew) if end.kind in ("failed", "late") else {}
            unsure: list[str] = []
            if end.kind != "finished":
                unsure = ending.end(crew, grace_s=self._job.grace_s, why=_why(end), hurry=at.hurry.is_set)
        left = ending.drain(crew)
        self._place_stops()
        if not left and not unsure:
            ending.clean(crew)
        return self._outcomes(end, frozen, skew, sorted({*left, *unsure}))

    def _outcomes(self, end: End, frozen: Mapping[str, Facts], skew: object, left: list[str]) -> list[Outcome]:
        crew = self._crew
        warnings = [
            f"not everything that it wrote could be fetched: see {crew.folders[name]} on {name}, then `runbook clean`"
            for name in left
        ]
        if end.kind == "failed":
            return judge_attempt(crew, end, frozen)
        if end.kind == "stopped":
            finding = Finding(
                "insufficient-evidence",
                "the job was stopped by you",
                "runbook run … again",
                (f"logs: {crew.logs.folder}",),
            )
            return [Outcome.unknown(name, finding) for name in crew.nodes]
        if end.kind == "late":
            finding = Finding(
                "insufficient-evidence",
                f"the job did not end within the stage's `timeout:`, and was ended: {len([m for m in crew.members if m.journal.get('why')])} processes lived",
                "give the stage a longer `timeout:`, or none; what the ranks did is in the run's folder, `hang/`",
                (f"logs: {crew.logs.folder}",),
            )
            return [Outcome.failed(name, finding) for name in crew.nodes]
        began = min(member.started or 0.0 for member in crew.members)
        ended = max(member.ended or 0.0 for member in crew.members)
        proof = f"{sum(len(m.place.ranks) for m in crew.members)} ranks ended with code 0 after {seconds_text(ended - began)}"
        if crew.attempt.number > 1:
            proof += f", at attempt {crew.attempt.number}"
        proof += (
            f"; started {skew} of each other; logs in {crew.logs.folder}" if skew else f"; logs in {crew.logs.folder}"
        )
        metrics = {
            "attempts": crew.attempt.number,
            "seconds": round(ended - began, 3),
            "skew_s": getattr(skew, "seconds", None),
        }
        return [
            Outcome.passed(name, proof, metrics=metrics, warnings=warnings if name in left else [])
            for name in crew.nodes
        ]

    def _line(self, place: Place, stream: str, lines: list[str]) -> None:
        output = {"name": place.name, "ranks": list(place.ranks), "stream": stream, "lines": lines}
        self._at.say("", place.node, place.ranks[0], {"output": output})

    def _script_stopped(self, place: Place, event: Mapping[str, Any]) -> None:
        self._stops[place.name] = event

    def _place_stops(self) -> None:
        for member in self._crew.members:
            member.stop = self._stops.get(member.place.name)

    def _barrier(self, node: Node) -> Facts | None:
        return None


def _why(end: End) -> str:
    if end.kind == "failed" and end.first is not None:
        return f"{end.first.label} failed"
    return {"stopped": "stopped by the user", "late": "the time is up"}.get(end.kind, end.kind)


def _not_started(node: str, problems: Mapping[str, Outcome]) -> Finding:
    names = tuple(sorted(problems))
    return Finding(
        "peer-died",
        f"{node} was ready, and nothing was started because of {', '.join(names[:4])}",
        f"mend {names[0]} first",
        (),
        names,
    )
