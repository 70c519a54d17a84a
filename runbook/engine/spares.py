"""A launch goes on with spares: where nodes were lost or broke, the next attempt is made on others that passed the same checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runbook.checks.context import Run
from runbook.engine.drop import NotDroppedError, may_leave
from runbook.engine.plan import Plan, PlannedStage, plan_with_spares
from runbook.jobs.launch import UNUSED_SPARE
from runbook.launch.job import Job
from runbook.model.errors import FilesWrong
from runbook.model.verdict import Outcome, overall

REOPEN_S = 30.0

Check = Callable[[Plan, PlannedStage], list[Outcome]]
"""Runs a stage of a plan."""


class Spares:
    """Of one launch: who has taken whose place, and why; and which spares were no use."""

    def __init__(self, plan: Plan, stage: PlannedStage, run: Run, check: Check, say: Callable[..., None]) -> None:
        self._plan = plan
        self._stage = stage
        self._run = run
        self._check = check
        self._say = say
        self._gone: dict[str, str] = {}  # nodes that left, and who came for them, in words
        self._took_over: dict[str, str] = {}  # spares in somebody's place, in words
        self._useless: dict[str, str] = {}  # spares that did not pass

    def launch(self) -> list[Outcome]:
        """One outcome for each node of the stage, from the last attempt that each of them had a part in."""
        plan, stage = self._plan, self._stage
        while True:
            outcomes = self._check(plan, stage)
            leaving = dict(self._run.leaving)
            self._run.leaving.clear()
            if not leaving or self._run.stopping.is_set():
                return self._told(outcomes)
            taken = self._take_over(leaving)
            if taken is None:
                why = "; ".join(f"the spare {name} could not take over: {says}" for name, says in self._useless.items())
                return self._told([outcome.with_evidence(why) for outcome in outcomes])
            plan, stage = taken

    def _take_over(self, leaving: Mapping[str, str]) -> tuple[Plan, PlannedStage] | None:
        """The plan and the launch without these nodes; None where too few spares are left that pass."""
        free = [name for name in self._stage.spares if name not in {*self._took_over, *self._useless}]
        while len(free) >= len(leaving):
            coming, rest = free[: len(leaving)], free[len(leaving) :]
            self._say(f"{', '.join(coming)} is looked at, to take the place of {', '.join(leaving)}")
            try:
                found = self._looked_at([*self._gone, *leaving], coming, rest)
            except (NotDroppedError, FilesWrong) as error:
                self._useless |= dict.fromkeys(coming, str(error))
                return None
            if found is not None:
                for (name, why), spare in zip(leaving.items(), coming, strict=True):
                    self._gone[name] = f"{why}; {spare} took its place"
                    self._took_over[spare] = f"took the place of {name}: {why}"
                    self._say(f"{spare} takes the place of {name}: {why}", spare, None, {"spare": {"for": name}})
                return found
            free = [name for name in free if name not in self._useless]
        return None

    def _looked_at(
        self, gone: Sequence[str], coming: Sequence[str], rest: Sequence[str]
    ) -> tuple[Plan, PlannedStage] | None:
        """The plan with these spares, after the checks before the launch have passed on all of its nodes. Raises
        NotDroppedError, FilesWrong."""
        may_leave(self._plan, gone)
        plan = plan_with_spares(self._plan, gone, [*self._took_over, *coming])
        nodes = [node for node in plan.inventory.nodes if node.name in coming]
        self._run.site.each(nodes, self._run.site.reopen, timeout_s=REOPEN_S)
        at = next(number for number, stage in enumerate(plan.stages) if stage.name == self._stage.name)
        for stage in plan.stages[:at]:
            if isinstance(stage.work, Job) or stage.skip is not None:
                continue
            outcomes = self._check(plan, replace(stage, name=self._stage.name))
            if overall(outcome.verdict for outcome in outcomes).stops:
                bad = {one.node: one.findings[0] for one in outcomes if one.verdict.stops}
                blamed = [name for name in coming if name in bad] or list(coming)
                first = next(iter(bad.values()))
                for name in blamed:
                    self._useless[name] = f"{stage.name}: {bad.get(name, first).says}"
                    self._say(f"{name} cannot take over: {self._useless[name]}", name)
                return None
        launch = plan.stages[at]
        assert isinstance(launch.work, Job)
        return plan, replace(launch, work=replace(launch.work, spares=tuple(rest)))

    def _told(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        last = {outcome.node: outcome for outcome in outcomes}
        found = []
        for name in self._stage.nodes:
            outcome = last.get(name)
            if name in self._gone:
                outcome = Outcome.skipped(name, f"it was replaced: {self._gone[name]}")
            elif name in self._took_over and outcome is not None:
                outcome = replace(outcome, warnings=(*outcome.warnings, f"it {self._took_over[name]}"))
            elif name in self._useless:
                outcome = Outcome.skipped(name, f"a spare that could not take over: {self._useless[name]}")
            elif outcome is None:
                outcome = Outcome.skipped(name, UNUSED_SPARE)
            found.append(outcome)
        return found
