"""Plans the stages of a playbook as `run` would plan them, with the engine's own planner, part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace

from runbook.checks import CHECKS
from runbook.engine.plan import Choice, PlannedStage, make_plan, too_few_nodes
from runbook.files.node_sets import select_nodes
from runbook.files.yaml_document import KeyPath
from runbook.launch.ranks import narrow_inventory
from runbook.lint.rule_inputs import PlaybookFile
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory, Node, Rendezvous
from runbook.model.playbook import Expect, Playbook, Stage

_EIGHT_GPUS = tuple(range(8))
_EXAMPLE_CLUSTER = Inventory(
    "", (Node("a", "a", gpus=_EIGHT_GPUS), Node("b", "b", gpus=_EIGHT_GPUS)), Rendezvous("a", "a", backend="nccl")
)
"""A placeholder for the inventory of `-i`; findings about stages must not depend on it."""
# The ids of problems that may be reported without a known inventory.
_CLUSTER_INDEPENDENT_IDS = {
    "playbook.bad-argument",
    "playbook.unknown-argument",
    "template.forbidden",
    "template.not-a-condition",
    "template.syntax",
    "template.undefined",
}


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """One stage; `keys` is where it stands in the document. `planned` is None if the stage could not be planned.

    `cluster` holds the nodes that the stage will run on: None if no inventory is known, or the stage is skipped there.
    """

    file: PlaybookFile
    stage: Stage
    keys: KeyPath
    planned: PlannedStage | None
    cluster: Inventory | None

    def span(self, *keys: str | int) -> Span | None:
        return self.file.document.span(*self.keys, *keys)

    def key_span(self, *keys: str) -> Span | None:
        return self.file.document.key_span(*self.keys, *keys)

    def sound(self, *keys: str) -> bool:
        """Whether nothing was wrong at this place of the stage, nor inside it."""
        place = (*self.keys, *keys)
        return not any(wrong[: len(place)] == place for wrong in self.file.wrong)


def plan_stages(file: PlaybookFile) -> tuple[list[Staged], list[Problem]]:
    """Every stage, and the planner's problems with it."""
    problems: list[Problem] = []
    cluster = _playbook_cluster(file, problems)
    known = cluster is not None
    if cluster is not None:
        problems += too_few_nodes(file.playbook, cluster, Choice())
    # In an inventory with a launch all stages stand at one place.
    places = values_by_key((file.document.span(*keys), keys) for keys in _stage_keys(file))
    staged: list[Staged] = []
    for stage in file.playbook.stages:
        there = places.get(stage.span)
        keys = there.pop(0) if there else ("stages",)
        planning = _Planning(file, stage, keys, cluster)
        planned = planning.planned()
        problems += planning.problems
        runs = planned is not None and planned.skip is None
        staged.append(Staged(file, stage, keys, planned, planned.inventory if planned and known and runs else None))
    return staged, [_with_default_help(problem) for problem in problems if _is_worth_reporting(problem, file)]


def _stage_keys(file: PlaybookFile) -> list[KeyPath]:
    stages = file.document.mapping.get("stages")
    return [("stages", index) for index in range(len(stages))] if isinstance(stages, list) else []


def _playbook_cluster(file: PlaybookFile, problems: list[Problem]) -> Inventory | None:
    """The inventory, narrowed to the nodes that the playbook is for; None if they are not known."""
    if file.inventory is None or not file.inventory.facts_known or ("nodes",) in file.wrong:
        return None
    inventory = file.inventory.inventory
    try:
        return narrow_inventory(inventory, select_nodes(file.playbook.nodes, inventory, file.document.span("nodes")))
    except FilesWrong as wrong:
        problems.extend(wrong.problems)
        return None


class _Planning:
    """Plans the parts of one stage one by one, so that each problem has the place of its part, and all are found."""

    def __init__(self, file: PlaybookFile, stage: Stage, keys: KeyPath, cluster: Inventory | None) -> None:
        """`cluster` is None where no inventory is known."""
        self.problems: list[Problem] = []
        self._file = file
        self._stage = stage
        self._keys = keys
        self._known = cluster is not None
        self._cluster = cluster or _EXAMPLE_CLUSTER

    def planned(self) -> PlannedStage | None:
        """The planned stage, None if some part of it could not be planned."""
        stage, patterns = self._stage, self._known
        pattern = stage.nodes if patterns and self._selects(stage.nodes) else None
        if not patterns and stage.launch.spares:
            stage = replace(stage, launch=replace(stage.launch, spares=()))  # spares are unknown nodes here
        condition = self._plan(_condition_only_stage(stage, self._span("when")))
        if stage.kind == "check" and stage.check not in CHECKS:
            return None
        where = self._span({"shell": "shell", "check": "with"}.get(stage.kind, "launch"))
        work = self._plan(replace(stage, nodes=pattern, when=None, expect=Expect(), span=where))
        if work is None or condition is None or (patterns and stage.nodes and pattern is None):
            return None
        return replace(work, skip=condition.skip)

    def _selects(self, pattern: str | None) -> bool:
        """Whether a pattern of nodes is given and sound; its problems are gathered."""
        if pattern is None:
            return False
        try:
            select_nodes(pattern, self._cluster, self._span("nodes"))
        except FilesWrong as wrong:
            self.problems.extend(wrong.problems)
            return False
        return True

    def _plan(self, stage: Stage) -> PlannedStage | None:
        # The number of nodes is judged for all stages together.
        playbook = Playbook(self._file.playbook.name, (replace(stage, min_nodes=None),), vars=self._file.playbook.vars)
        try:
            return make_plan(playbook, self._cluster, Choice()).stages[-1]
        except FilesWrong as wrong:
            self.problems += [
                problem for problem in wrong.problems if self._known or _holds_for_any_inventory(problem, stage)
            ]
            return None

    def _span(self, key: str) -> Span | None:
        return self._file.document.span(*self._keys, key)


def _condition_only_stage(stage: Stage, span: Span | None) -> Stage:
    """A stage with the same `when:` and nothing else that could be wrong."""
    return Stage(stage.name, "check", check="ping", when=stage.when, span=span)


def _holds_for_any_inventory(problem: Problem, stage: Stage) -> bool:
    """Whether a problem holds for every inventory. An undefined variable of a launch or a shell line does not: nodes
    may have it."""
    return problem.id in _CLUSTER_INDEPENDENT_IDS and not (problem.id == "template.undefined" and stage.kind != "check")


def _is_worth_reporting(problem: Problem, file: PlaybookFile) -> bool:
    """Whether to report a problem: a variable is not reported as undefined if something in `vars:` was found wrong."""
    return problem.id != "template.undefined" or file.sound("vars")


def _with_default_help(problem: Problem) -> Problem:
    if problem.id != "template.undefined" or (problem.help or "").startswith("write "):
        return problem
    more = "a variable that -e will bring needs a default here all the same: add it to `vars:`"
    return replace(problem, help=f"{problem.help}\n{more}" if problem.help else more)
