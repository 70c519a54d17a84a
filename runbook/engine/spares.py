"""Spares: which of them take the places of nodes that a launch lost, after they have passed the checks before it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from runbook.checks.context import Run
from runbook.checks.firewall import Firewall
from runbook.engine.bad_nodes import NotDroppedError, check_master_may_leave
from runbook.engine.plan import Plan, PlannedStage, plan_with_spares
from runbook.launch.job import UNUSED_SPARE, Job
from runbook.model.errors import FilesWrong
from runbook.model.inventory import Inventory
from runbook.model.verdict import Outcome, Verdict
from runbook.transport.node_sessions import REOPEN_TIMEOUT_S

RunStage = Callable[[Run, Plan, PlannedStage], list[Outcome]]
"""Runs a stage of a plan; its outcomes."""


class Spares:
    """The spares of one launch: which of them took which node's place and why, and which did not pass the checks."""

    def __init__(self, plan: Plan, stage: PlannedStage, check: RunStage, say: Callable[..., None]) -> None:
        self._plan = plan
        self._stage = stage
        self._check = check
        self._say = say
        self._gone: dict[str, str] = {}  # by node that left: in words, why, and its replacement
        self._took_over: dict[str, str] = {}  # by spare that took a place: in words, whose, and why
        self._useless: dict[str, str] = {}  # by spare that did not pass when spares were last needed: in words, why

    @property
    def gone(self) -> tuple[str, ...]:
        """The nodes that spares have replaced."""
        return tuple(self._gone)

    def launch(self, run: Run) -> list[Outcome]:
        """Runs the launch, with spares where nodes have to be replaced; one outcome for each node of the stage."""
        plan, stage = self._plan, self._stage
        while True:
            outcomes = self._check(run, plan, stage)
            leaving = dict(run.leaving)
            run.leaving.clear()
            if not leaving or run.stopping.is_set():
                return self.with_replacements(outcomes)
            taken = self.take_over(run, leaving)
            if taken is None:
                return self.with_replacements(self.with_why_not(outcomes))
            plan, stage = taken

    def knows(self, spare: str, name: str, why: str) -> None:
        """Notes that `spare` has taken the place of the node `name`, and why."""
        self._gone[name] = f"{why}; {spare} took its place"
        self._took_over[spare] = f"took the place of {name}: {why}"

    def now(self) -> tuple[Plan, PlannedStage]:
        """The plan and the launch with the spares that have taken over so far. Raises FilesWrong."""
        if not self._took_over:
            return self._plan, self._stage
        left = [name for name in self._stage.check.spares if name not in self._took_over]
        return self._with((), (), left)

    def take_over(self, run: Run, leaving: Mapping[str, str]) -> tuple[Plan, PlannedStage] | None:
        """The plan and the launch with spares in the places of the `leaving` nodes; None if too few spares pass."""
        self._useless.clear()
        free = [name for name in self._stage.check.spares if name not in self._took_over]
        while len(free) >= len(leaving):
            coming, rest = free[: len(leaving)], free[len(leaving) :]
            self._say(f"{', '.join(coming)} is looked at, to take the place of {', '.join(leaving)}")
            try:
                found = self._looked_at(run, leaving, coming, rest)
            except (NotDroppedError, FilesWrong) as error:
                self._useless |= dict.fromkeys(coming, str(error))
                return None
            if found is not None:
                for (name, why), spare in zip(leaving.items(), coming, strict=True):
                    self.knows(spare, name, why)
                    fields = {"spare": {"for": name, "why": why}}
                    self._say(f"{spare} takes the place of {name}: {why}", node=spare, data=fields)
                return found
            free = [name for name in free if name not in self._useless]
        return None

    def launch_without(self, run: Run, leaving: Mapping[str, str]) -> tuple[Job, Inventory] | None:
        """The same as `take_over`, but gives the job and the inventory of its nodes."""
        taken = self.take_over(run, leaving)
        if taken is None or (job := taken[1].check.user_job) is None:
            return None
        return job, taken[1].inventory

    def _with(self, leaving: Iterable[str], coming: Iterable[str], rest: Sequence[str]) -> tuple[Plan, PlannedStage]:
        """The plan and the launch with the `coming` spares, and those that took over before, in the places of the nodes
        that left; `rest` stay spares. Raises FilesWrong."""
        plan = plan_with_spares(self._plan, [*self._gone, *leaving], [*self._took_over, *coming])
        launch = next(stage for stage in plan.stages if stage.name == self._stage.name)
        return plan, replace(launch, check=launch.check.with_spares(rest))

    def _looked_at(
        self, run: Run, leaving: Mapping[str, str], coming: Sequence[str], rest: Sequence[str]
    ) -> tuple[Plan, PlannedStage] | None:
        """The plan and the launch with the `coming` spares, if the checks before the launch pass on all nodes of the
        plan; else None. If there is no `firewall` check among them, one runs in addition and must not fail. Raises
        NotDroppedError, FilesWrong."""
        check_master_may_leave(self._plan, [*self._gone, *leaving])
        plan, launch = self._with(leaving, coming, rest)
        nodes = [node for node in plan.inventory.nodes if node.name in coming]
        run.site.each(nodes, run.site.reopen, timeout_s=REOPEN_TIMEOUT_S)
        before = itertools.takewhile(lambda stage: stage.name != launch.name, plan.stages)
        stages = [stage for stage in before if stage.check.names_bad_nodes and stage.skip is None]
        if unasked := not any(stage.check.id == Firewall.id for stage in stages):
            stages.append(replace(launch, name=Firewall.id, check=Firewall(), timeout_s=Firewall.timeout_s))
        for stage in stages:
            outcomes = self._check(run, plan, replace(stage, name=launch.name))
            stopped = [one for one in outcomes if one.verdict.stops]
            if unasked and stage is stages[-1]:  # an unknown of the additional firewall check refuses no spare
                stopped = [one for one in stopped if one.verdict is Verdict.FAIL]
            if stopped:
                bad = {one.node: one.findings[0] for one in stopped}
                blamed = [name for name in coming if name in bad] or list(coming)
                first = next(iter(bad.values()))
                for name in blamed:
                    self._useless[name] = f"{stage.name}: {bad.get(name, first).says}"
                    self._say(f"{name} cannot take over: {self._useless[name]}", name)
                return None
        return plan, launch

    def with_why_not(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The outcomes of an attempt, with the reason why no spare could take over added."""
        why = "; ".join(f"the spare {name} could not take over: {says}" for name, says in self._useless.items())
        return [outcome.with_evidence(why) for outcome in outcomes]

    def with_replacements(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """One outcome for each node of the stage: those of the last attempt, and skips for the nodes that were replaced
        and the spares that were not used."""
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
