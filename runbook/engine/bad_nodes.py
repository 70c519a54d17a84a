"""How does a run go on without its bad nodes: which nodes are left out (`when_bad: drop`), which stages run again for
the others, and which spares replace nodes that a launch lost?

A `fail` proves a node bad by a finding of its own. Findings that two nodes have about each other are about the
connection between them: the fewest nodes are left out without which no such connection is left. An `unknown` proves
nothing. An unknown node cannot take part either, so it is left out if no other node is to blame, but it is never called
bad. If all nodes fail alike, something that they share is to blame, and none is left out.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.causes.catalogue import causes_of_kind
from runbook.checks.context import Run
from runbook.checks.firewall import Firewall
from runbook.engine.plan import Plan, PlannedStage, plan_with_spares, plan_without
from runbook.launch.job import UNUSED_SPARE, Job
from runbook.model.errors import FilesWrong, RunbookError
from runbook.model.inventory import Inventory
from runbook.model.node_ranges import fold
from runbook.model.verdict import Finding, Outcome, Verdict

CONTROLLER_CAUSES = frozenset({"controller-paused"})
"""Causes that lie on the controller: no node is left out because of them."""

MAX_EXACT_PAIRS = 24
"""The most bad pairs for which the fewest nodes are searched exactly. With more, the node with the most pairs is left
out first, which nearly always gives the fewest."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """The nodes that may be left out, each with the reason in words: nodes that are proven `bad`, `ends` of bad
    connections, and nodes that are `unknown`."""

    bad: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def leaving(self) -> Mapping[str, str]:
        """The nodes without which the run goes on. Unknown nodes are among them only if nothing is proven: an unknown
        may follow from a proven fault."""
        return {**self.bad, **self.ends} or self.unknown


class NotDroppedError(RunbookError):
    """The run stops although it was to go on without its bad nodes; the message says why."""


def suspected_nodes(outcomes: Sequence[Outcome]) -> Suspects:
    """The nodes that may be left out after these outcomes: one for each node of a stage, in rank order."""
    failed = {outcome.node: outcome.findings for outcome in outcomes if outcome.verdict is Verdict.FAIL}
    unknown = {
        outcome.node: finding.cause
        for outcome in outcomes
        if outcome.verdict is Verdict.UNKNOWN
        for finding in reversed(outcome.findings)
        if finding.cause not in causes_of_kind("consequence") and finding.cause not in CONTROLLER_CAUSES
    }
    if have_common_cause([failed.get(outcome.node, ()) for outcome in outcomes]):
        return Suspects(unknown=unknown)
    bad: dict[str, str] = {}
    between: dict[frozenset[str], str] = {}
    for node, findings in failed.items():
        for finding in findings:
            if is_mutual_finding(node, finding, failed):
                between |= {frozenset((node, peer)): finding.cause for peer in finding.peers}
            else:
                bad.setdefault(node, finding.cause)
    rank = {outcome.node: place for place, outcome in enumerate(outcomes)}
    left = [pair for pair in between if not pair & bad.keys()]
    going = fewest_nodes_to_drop(left, rank)
    ends: dict[str, str] = {}
    for node in sorted(going, key=rank.__getitem__):
        mine = [pair for pair in left if node in pair]
        others = sorted((other for pair in mine for other in pair - {node}), key=rank.__getitem__)
        ends[node] = f"{between[mine[0]]} with {fold(others)}"
    return Suspects(bad, ends, unknown)


def have_common_cause(findings: Sequence[Collection[Finding]]) -> bool:
    """Whether there are several nodes and all of them have a cause in common. `findings`: those of each node."""
    causes = [{finding.cause for finding in of} for of in findings]
    return len(causes) > 1 and bool(set.intersection(*causes))


def is_mutual_finding(node: str, finding: Finding, failed: Mapping[str, Collection[Finding]]) -> bool:
    """Whether all peers of the finding report the same cause about this node."""
    return bool(finding.peers) and all(
        any(other.cause == finding.cause and node in other.peers for other in failed.get(peer, ()))
        for peer in finding.peers
    )


def fewest_nodes_to_drop(pairs: Collection[frozenset[str]], rank: Mapping[str, int]) -> frozenset[str]:
    """The fewest nodes whose removal breaks every pair; of several choices the nodes with the latest ranks, so that the
    master stays. Beyond MAX_EXACT_PAIRS pairs the result may not be the fewest."""
    left, gone = list(pairs), set[str]()
    while left:
        degree = Counter(node for pair in left for node in pair)
        node = max(degree, key=lambda name: (degree[name], rank[name]))
        if degree[node] == 1:  # no two pairs have a node in common
            return frozenset(gone.union(max(pair, key=rank.__getitem__) for pair in left))
        rest = [pair for pair in left if node not in pair]
        if len(left) <= MAX_EXACT_PAIRS:
            others = frozenset(other for pair in left if node in pair for other in pair - {node})
            without_it = fewest_nodes_to_drop([pair for pair in left if not pair & others], rank) | others
            choices = (fewest_nodes_to_drop(rest, rank) | {node}, without_it)
            return frozenset(gone) | min(choices, key=lambda names: (len(names), sorted(-rank[name] for name in names)))
        gone.add(node)
        left = rest
    return frozenset(gone)


def plan_for_rest(plan: Plan, stage: PlannedStage, leaving: Collection[str]) -> Plan:
    """The plan without the `leaving` nodes. Raises NotDroppedError if the run cannot go on without them."""
    if not leaving:
        raise NotDroppedError(f"no single node of {stage.name} is to blame")
    nodes = [node.name for node in plan.inventory.nodes]
    left = [name for name in nodes if name not in leaving]
    who = fold(name for name in nodes if name in leaving)
    if len(left) < stage.min_nodes:
        number = f"{len(left)} of {len(nodes)} nodes"
        raise NotDroppedError(f"without {who} only {number} would be left, and `min_nodes` is {stage.min_nodes}")
    check_master_may_leave(plan, leaving)
    try:
        return plan_without(plan, leaving)
    except FilesWrong as wrong:
        raise NotDroppedError(f"without {who} the playbook does not work: {wrong.problems[0].message}") from wrong


def check_master_may_leave(plan: Plan, leaving: Collection[str]) -> None:
    """Raises NotDroppedError if the master is one of the `leaving` nodes, and no other node can lead."""
    rendezvous = plan.inventory.rendezvous
    if rendezvous.master in leaving:
        where = f"{rendezvous.master} is the master, and the ranks meet at"
        master = plan.inventory.master
        if rendezvous.address not in (master.address, master.name, master.ssh.host):
            address = f"`rendezvous: address: {rendezvous.address}`, which no other node has"
            raise NotDroppedError(f"{where} {address}: name another `master:` and its address")
        if any("MASTER_ADDR" in env for env in (plan.inventory.env, *(n.env for n in plan.inventory.nodes))):
            raise NotDroppedError(f"{where} what `env: MASTER_ADDR` says: take it out, and another node can lead")


def must_run_again(before: PlannedStage, after: PlannedStage, outcomes: Iterable[Outcome]) -> bool:
    """Whether a finished stage has to run again for the nodes that are left (`after`): if not all of these passed, if
    it judged all nodes together, or if it looked at a master that is gone."""
    own = {outcome.node: outcome.verdict for outcome in outcomes}
    if any(own.get(node, Verdict.UNKNOWN).stops for node in after.nodes):
        return True
    return before.check.judges_together or has_rendezvous_moved(before, after)


def has_rendezvous_moved(before: PlannedStage, after: PlannedStage) -> bool:
    """Whether the stage looked at the rendezvous, and the rendezvous is somewhere else now."""
    return before.check.looks_at_rendezvous and before.inventory.rendezvous != after.inventory.rendezvous


SPARES_REOPEN_TIMEOUT_S = 30.0
"""Seconds for connecting again to the spares that are to take over."""

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
        run.site.each(nodes, run.site.reopen, timeout_s=SPARES_REOPEN_TIMEOUT_S)
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
