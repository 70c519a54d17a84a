"""Which stages of a playbook will run, on which nodes of an inventory, with which arguments? Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from runbook.checks import CHECKS
from runbook.checks.base import Check, build_check
from runbook.checks.reach.reach import Reach
from runbook.files.node_sets import select_nodes, split_names
from runbook.files.suggestions import did_you_mean
from runbook.files.templating import condition_holds, fill_templates, template_variables
from runbook.launch.job import make_job, node_variable_names, node_variables, problem_on_nodes
from runbook.launch.ranks import narrow_inventory, rank_layout
from runbook.launch.script import script_names
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory, Node
from runbook.model.node_ranges import fold
from runbook.model.playbook import Playbook, Stage
from runbook.model.redact import environment_secrets, known_inventory_secrets
from runbook.model.secrets import Secret

DEFAULT_MIN_NODES = 2
"""The default for the least number of nodes with which a run goes on: one node alone proves nothing about a cluster."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line picks from a playbook. Empty collections pick everything.

    `without_bad`: every stage that can name bad nodes drops them. `min_nodes`: overrides the value in the files.
    `took_over` does not come from the command line: launches set it while the run goes on.
    """

    limit: str | None = None
    tags: Collection[str] = ()
    skip_tags: Collection[str] = ()
    start_at: str | None = None
    extra: Mapping[str, object] = field(default_factory=dict)
    without_bad: bool = False
    min_nodes: int | None = None
    took_over: Collection[str] = ()  # spares that have taken another node's place


@dataclass(frozen=True)
class PlannedStage:
    """One stage, ready to run. With `skip`, the reason in words, it does not run: its `when:` does not hold, or `-l`
    leaves none of its nodes.

    `script`: the name, without its ending, of the file that starts the stage's ranks on a node. With `drop_bad` the run
    goes on without nodes that the stage proves bad, if at least `min_nodes` of the run's nodes are left.
    """

    name: str
    check: Check
    inventory: Inventory
    timeout_s: float
    stop_on_failure: bool = True
    skip: str | None = None
    script: str = "ranks"
    drop_bad: bool = False
    min_nodes: int = DEFAULT_MIN_NODES

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the stage reports about: its own, and the spares of a launch."""
        return (*(node.name for node in self.inventory.nodes), *self.check.spares)

    @property
    def starts_ranks(self) -> bool:
        """Whether the stage starts ranks on the nodes by a script, be it of runbook's own program or of the user's."""
        return self.check.needs_ranks or self.check.user_job is not None


@dataclass(frozen=True)
class Plan:
    """The stages of a run, ready to run, with the nodes that take part (`inventory`). `playbook`, `whole` (the
    inventory with all of its nodes) and `choice` are what the plan was made from. `whole` is None in a plan from which
    no nodes are ever dropped."""

    playbook: Playbook
    inventory: Inventory
    stages: tuple[PlannedStage, ...]
    whole: Inventory | None = None
    choice: Choice = field(default_factory=Choice)

    @property
    def sources(self) -> tuple[str, ...]:
        """In words, the files that this plan was made from, for the heads of its scripts."""
        return (f"inventory {self.inventory.source}", f"playbook {self.playbook.source}")

    @property
    def secrets(self) -> list[Secret]:
        """Every secret that the inventory, the jobs and the playbook's variables name or hold."""
        more = environment_secrets(
            self.playbook.vars, *(env for stage in self.stages for env in stage.check.environments)
        )
        return list(dict.fromkeys([*known_inventory_secrets(self.inventory), *more]))

    @property
    def ranked(self) -> Inventory:
        """The inventory with only the nodes that have ranks, for display. A spare takes part in checks, but has no rank
        of the launch until it takes another node's place."""
        spares = {name for stage in self.stages for name in stage.check.spares}
        launched = {node.name for stage in self.stages if stage.check.user_job for node in stage.inventory.nodes}
        left = [node for node in self.inventory.nodes if node.name not in spares - launched]
        return self.inventory if len(left) == len(self.inventory.nodes) else narrow_inventory(self.inventory, left)

    @property
    def launch(self) -> PlannedStage | None:
        """The first stage that launches a program, or None."""
        return next((stage for stage in self.stages if stage.check.user_job), None)

    @property
    def first_with_ranks(self) -> PlannedStage | None:
        """The first stage whose check will run one process a rank, or None."""
        return next((s for s in self.stages if s.check.needs_ranks and s.skip is None), None)


def make_plan(playbook: Playbook, inventory: Inventory, choice: Choice) -> Plan:
    """The plan of a run. Raises FilesWrong with everything that is wrong with the playbook's arguments and the
    choice."""
    chosen = narrow_inventory(inventory, _selected_nodes(playbook, inventory, choice))
    return _plan_for_nodes(playbook, inventory, choice, chosen, too_few_nodes(playbook, chosen, choice))


def plan_without(plan: Plan, leaving: Collection[str]) -> Plan:
    """The same stages, planned without the `leaving` nodes: ranks, templates and conditions are those of the rest.
    Raises FilesWrong if a stage cannot be planned for the rest."""
    assert plan.whole is not None
    left = [node for node in plan.inventory.nodes if node.name not in leaving]
    return _plan_for_nodes(plan.playbook, plan.whole, plan.choice, narrow_inventory(plan.inventory, left))


def plan_with_spares(plan: Plan, gone: Collection[str], took_over: Collection[str]) -> Plan:
    """The same stages, planned with the spares in `took_over` in the places of the nodes that are `gone`, and without
    all other spares, so that the checks look at the nodes of the launch only. Raises FilesWrong."""
    assert plan.whole is not None
    spares = {name for stage in plan.stages for name in stage.check.spares}
    left = [n for n in plan.inventory.nodes if n.name not in gone and (n.name in took_over or n.name not in spares)]
    return _plan_for_nodes(
        plan.playbook,
        plan.whole,
        replace(plan.choice, took_over=tuple(took_over)),
        narrow_inventory(plan.inventory, left),
    )


def _plan_for_nodes(
    playbook: Playbook, inventory: Inventory, choice: Choice, chosen: Inventory, known: Iterable[Problem] = ()
) -> Plan:
    """The plan for the chosen nodes. Raises FilesWrong with all problems, the `known` ones included."""
    problems = list(known)
    set_above = {**playbook.vars, **choice.extra}
    scripts = script_names(stage.name for stage in playbook.stages)
    stages = [
        PlannedStage(
            name="reach",
            check=Reach(),
            inventory=chosen,
            timeout_s=Reach.timeout_s,
            drop_bad=choice.without_bad or playbook.when_bad == "drop",
            min_nodes=_first_given(choice.min_nodes, playbook.min_nodes, DEFAULT_MIN_NODES),
        )
    ]
    for stage in _selected_stages(playbook.stages, choice, playbook.source):
        if stage.check == "reach":
            continue  # `reach` runs once, whether the playbook lists it or not
        try:
            if left_out := _nodes_left_out(stage, playbook, inventory, choice):
                planned = _plan_stage(stage, inventory, left_out, set_above, scripts[stage.name])
                skip = f"-l leaves none of its nodes ({stage.nodes})"
                stages.append(replace(planned, inventory=chosen, skip=skip))
                continue
            planned = _plan_stage(stage, inventory, chosen, set_above, scripts[stage.name], choice.took_over)
            stages.append(_with_drop_settings(planned, stage, playbook, choice))
        except FilesWrong as wrong:
            problems.extend(wrong.problems)
    if problems:
        raise FilesWrong(problems)
    return Plan(playbook, chosen, tuple(stages), inventory, choice)


def _with_drop_settings(planned: PlannedStage, stage: Stage, playbook: Playbook, choice: Choice) -> PlannedStage:
    """The stage with `drop_bad` and `min_nodes` set. A stage whose failure does not stop the run drops no nodes."""
    drops = choice.without_bad or (stage.when_bad or playbook.when_bad) == "drop"
    return replace(
        planned,
        drop_bad=drops and planned.check.names_bad_nodes and planned.stop_on_failure,
        min_nodes=_first_given(choice.min_nodes, stage.min_nodes, playbook.min_nodes, DEFAULT_MIN_NODES),
    )


def _first_given(*numbers: int | None) -> int:
    """The first number that is given."""
    return next(number for number in numbers if number is not None)


def too_few_nodes(playbook: Playbook, chosen: Inventory, choice: Choice) -> Iterator[Problem]:
    """The problems of a run that begins with fewer nodes than `min_nodes` asks for."""
    count = len(chosen.nodes)
    asked = [
        (playbook.min_nodes, playbook.min_nodes_span),
        *((stage.min_nodes, stage.span) for stage in playbook.stages),
    ]
    if choice.min_nodes is not None:
        asked = [(choice.min_nodes, None)]
    for number, span in asked:
        if number is not None and number > count:
            message = f"the run needs at least {number} nodes to go on, and it begins with {count}"
            yield Problem("playbook.too-few-nodes", message, span, f"write {count} or less, or choose more nodes")


def refuse_what_cannot_run(plan: Plan) -> None:
    """Raises FilesWrong with everything in a plan that can be planned and rendered, but not run."""
    problems: list[Problem] = []
    windows = [node.name for node in plan.inventory.nodes if node.windows]
    if windows:
        message = f"{fold(windows)}: stages cannot be run on Windows nodes, scripts can be rendered for them"
        names = split_names(fold(windows))
        help = f"leave them out with `-l 'all:!{':!'.join(names)}'`"
        if len(windows) == len(plan.inventory.nodes):
            help = f"`runbook render {shell_word(plan.playbook.source)}` writes them (with the same -i, if any)"
        problems.append(Problem("inventory.windows-node", message, help=help))
    for stage in plan.stages:
        problems += stage.check.refused(stage.name, [plan.inventory.node(name) for name in stage.nodes])
    if problems:
        raise FilesWrong(problems)


def _selected_nodes(playbook: Playbook, inventory: Inventory, choice: Choice) -> tuple[Node, ...]:
    """The nodes that the playbook and -l both name. Raises FilesWrong if there are none."""
    nodes = select_nodes(playbook.nodes, inventory)
    if choice.limit is None:
        return nodes
    kept = {node.name for node in select_nodes(choice.limit, inventory)}
    both = tuple(node for node in nodes if node.name in kept)
    if not both:
        message = f"-l {choice.limit} leaves none of the playbook's nodes ({playbook.nodes})"
        help = "`all` and the names of nodes, groups and ranges can be joined with `:`, `!` and `&`"
        raise FilesWrong.of("arguments.empty-selection", message, help=help)
    return both


def _cluster_variables(inventory: Inventory) -> dict[str, object]:
    """The variables that describe the cluster in templates. The playbook's vars override them, and `-e` overrides
    both."""
    return {
        "nodes": [node.name for node in inventory.nodes],
        "node_count": len(inventory.nodes),
        "world_size": inventory.world_size,
        "gpus": sum(len(node.gpus) for node in inventory.nodes),
        "backend": inventory.rendezvous.backend,
        "infiniband": inventory.infiniband is not None,
        "master": inventory.rendezvous.master,
    }


_SPECIAL_TAGS = ("all", "always", "tagged", "untagged")
"""Tags with a meaning of their own, as in Ansible, whether or not a stage has them."""


def _selected_stages(stages: Sequence[Stage], choice: Choice, source: str) -> list[Stage]:
    """The stages that --start-at and tags pick, in the playbook's order. Raises FilesWrong if none is left, or a name
    is unknown."""
    wanted = list(stages)
    if choice.start_at is not None:
        matching = [s for s in wanted if s.name == choice.start_at] or [s for s in wanted if s.check == choice.start_at]
        if not matching:
            help = did_you_mean(choice.start_at, [stage.name for stage in stages])
            raise FilesWrong.of("arguments.unknown-stage", f"{source} has no stage {choice.start_at!r}", help=help)
        wanted = wanted[wanted.index(matching[0]) :]
    known = dict.fromkeys([*(tag for stage in stages for tag in stage.tags), *_SPECIAL_TAGS])
    unknown = [
        tag for tag in (*choice.tags, *choice.skip_tags) if tag not in known and tag not in {s.name for s in stages}
    ]
    if unknown:
        problems = [
            Problem("arguments.unknown-tag", f"no stage of {source} has the tag {tag!r}", help=did_you_mean(tag, known))
            for tag in unknown
        ]
        raise FilesWrong(problems)
    if choice.tags:
        wanted = [stage for stage in wanted if _has_tag(stage, choice.tags) or "always" in stage.tags]
    if choice.skip_tags:
        wanted = [stage for stage in wanted if not _has_tag(stage, choice.skip_tags)]
    if not wanted:
        message = f"the tags chosen leave no stage of {source}"
        raise FilesWrong.of("arguments.empty-selection", message, help="see them with -C")
    return wanted


def _has_tag(stage: Stage, tags: Collection[str]) -> bool:
    names = {*stage.tags, stage.name, "all", "tagged" if stage.tags else "untagged"}
    return bool(names & set(tags))


def _plan_stage(
    stage: Stage,
    whole: Inventory,
    inventory: Inventory,
    set_above: Mapping[str, object],
    script: str,
    took_over: Collection[str] = (),
) -> PlannedStage:
    """A stage, ready to run on its nodes. Raises FilesWrong."""
    spares = _launch_spares(stage, whole, inventory, took_over)
    variables = {**_cluster_variables(inventory), **set_above}
    if stage.nodes:
        inventory = narrow_inventory(inventory, _stage_nodes(stage, stage.nodes, whole, inventory))
    if spares:
        inventory = narrow_inventory(inventory, _nodes_without_spares(stage, inventory, spares))
    skip = None if stage.when is None or _is_when_true(stage, variables, whole) else f"when: {stage.when} does not hold"
    if stage.kind == "launch":
        check = _launch_check(stage, inventory, set_above, spares)
    else:
        check = (
            _shell_check(stage, inventory, set_above) if stage.kind == "shell" else _configured_check(stage, variables)
        )
    timeout = stage.timeout_s or _default_timeout(check)
    return PlannedStage(
        name=stage.name,
        check=check,
        inventory=inventory,
        timeout_s=timeout,
        stop_on_failure=stage.on_failure == "stop",
        skip=skip,
        script=script,
    )


def _is_when_true(stage: Stage, variables: Mapping[str, object], whole: Inventory) -> bool:
    """Whether the stage's `when:` holds. It is asked once for all nodes; a `when:` that uses variables of single nodes,
    as Ansible allows, is refused with a help that says so."""
    assert stage.when is not None
    try:
        return condition_holds(stage.when, variables, stage.span)
    except FilesWrong as wrong:
        of_nodes = template_variables(f"{{{{ {stage.when} }}}}") & {name for node in whole.nodes for name in node.vars}
        if not of_nodes - variables.keys():
            raise
        help = "`when:` is asked once for all nodes and sees no node's `vars:`; `nodes: PATTERN` chooses nodes"
        raise FilesWrong([replace(problem, help=help) for problem in wrong.problems]) from None


def _nodes_left_out(stage: Stage, playbook: Playbook, whole: Inventory, choice: Choice) -> Inventory | None:
    """The nodes of a stage that is skipped because -l leaves none of them; None if the stage is not skipped for that. A
    launch never is: a skipped launch would hide that nothing trains."""
    if choice.limit is None or stage.nodes is None or stage.kind == "launch":
        return None
    of_playbook, limited = ({node.name for node in select_nodes(of, whole)} for of in (playbook.nodes, choice.limit))
    meant = [node for node in select_nodes(stage.nodes, whole, stage.span) if node.name in of_playbook]
    return narrow_inventory(whole, meant) if meant and not any(node.name in limited for node in meant) else None


def _launch_check(
    stage: Stage, inventory: Inventory, set_above: Mapping[str, object], spares: tuple[str, ...]
) -> Check:
    """The check of a `launch:` stage."""
    from runbook.jobs.launch import Launch  # imported only for a playbook with a launch, since it takes time

    # A launch's templates see the facts of its own nodes: `{{ world_size }}` is the WORLD_SIZE of every rank.
    return Launch(job=make_job(stage, rank_layout(inventory), _cluster_variables(inventory), set_above, spares))


def _stage_nodes(stage: Stage, pattern: str, whole: Inventory, chosen: Inventory) -> list[Node]:
    """The chosen nodes that the stage's pattern names. The pattern may also name nodes that were not chosen. Raises
    FilesWrong if none is left."""
    meant = {node.name for node in select_nodes(pattern, whole, stage.span)}
    kept = [node for node in chosen.nodes if node.name in meant]
    if not kept:
        message = f"none of the nodes of the stage `{stage.name}` (`{pattern}`) takes part"
        help = f"-l or the playbook's `nodes:` leave only {', '.join([node.name for node in chosen.nodes][:3])}"
        help += " …" * (len(chosen.nodes) > 3)
        raise FilesWrong.of("pattern.empty", message, span=stage.span, help=help)
    return kept


def _launch_spares(stage: Stage, whole: Inventory, chosen: Inventory, took_over: Collection[str]) -> tuple[str, ...]:
    """The spares of a launch, in the order in which they are named: those of the run's nodes that have not taken
    another node's place yet."""
    span = stage.launch_spans.get(("spares",), stage.span)
    named = [node.name for pattern in stage.launch.spares for node in select_nodes(pattern, whole, span)]
    here = {node.name for node in chosen.nodes}
    return tuple(name for name in dict.fromkeys(named) if name in here and name not in took_over)


def _nodes_without_spares(stage: Stage, inventory: Inventory, spares: Collection[str]) -> list[Node]:
    """The stage's nodes without its spares. Raises FilesWrong if none is left."""
    kept = [node for node in inventory.nodes if node.name not in spares]
    if not kept:
        message = f"all nodes of the stage `{stage.name}` are its spares: no node is left to have ranks"
        span = stage.launch_spans.get(("spares",), stage.span)
        raise FilesWrong.of("pattern.empty", message, span=span, help="name fewer spares, or more nodes")
    return kept


def _shell_check(stage: Stage, inventory: Inventory, set_above: Mapping[str, object]) -> Check:
    """The check of a `shell:` stage. Its line is the user's shell code; the values put into it are data, each quoted as
    one word."""
    from runbook.checks.shell import Shell  # imported only for a playbook with such a stage

    assert stage.shell is not None
    if stage.expect.stdout is not None:
        try:
            re.compile(stage.expect.stdout)
        except re.error as error:
            message = f"`expect: stdout:` is not a regular expression: {error}"
            raise FilesWrong.of("playbook.bad-argument", message, span=stage.span) from None
    facts = _cluster_variables(inventory)
    by_node = rank_layout(inventory).by_node.values()
    of_nodes = node_variable_names(by_node) - set_above.keys()
    if not template_variables(stage.shell) & of_nodes:
        return Shell(_filled_line(stage, {**facts, **set_above}), stage.expect)
    lines: dict[str, str] = {}
    # By id and message alone: the help of a problem names a node's own vars, so it differs from node to node.
    problems: dict[tuple[str, str], tuple[Problem, list[str]]] = {}
    for node_ranks in by_node:
        try:
            lines[node_ranks.node.name] = _filled_line(
                stage, {**facts, **node_variables(node_ranks), **node_ranks.node.vars, **set_above}
            )
        except FilesWrong as wrong:
            for problem in wrong.problems:
                found = problems.setdefault((problem.id, problem.message), (problem, []))
                found[1].append(node_ranks.node.name)
    if problems:
        raise FilesWrong([problem_on_nodes(problem, names, len(by_node)) for problem, names in problems.values()])
    return Shell(stage.shell, stage.expect, lines)


def _filled_line(stage: Stage, variables: Mapping[str, object]) -> str:
    """The line of a `shell:` stage with its templates filled in, each value quoted."""
    return str(
        fill_templates(stage.shell, {name: _shell_quoted(value) for name, value in variables.items()}, stage.span)
    )


def _shell_quoted(value: object) -> object:
    """The value with each text in it quoted as one word of a shell."""
    if isinstance(value, str):
        return shlex.quote(value)
    if isinstance(value, Mapping):
        return {key: _shell_quoted(one) for key, one in value.items()}
    return [_shell_quoted(one) for one in value] if isinstance(value, list | tuple) else value


def _configured_check(stage: Stage, variables: Mapping[str, object]) -> Check:
    """The check of a stage with its arguments, templates filled in. Raises FilesWrong."""
    assert stage.check is not None
    values: dict[str, object] = {}
    problems: list[Problem] = []
    for name, value in stage.arguments.items():
        try:
            values[name] = fill_templates(value, variables, stage.argument_spans.get(name, stage.span))
        except FilesWrong as wrong:
            problems.extend(wrong.problems)
    if problems:
        raise FilesWrong(problems)
    return build_check(CHECKS[stage.check], values, stage.argument_spans, stage.span, stage.argument_names)


def _default_timeout(check: Check) -> float:
    """The check's own default timeout in seconds; a check with a time budget gets the budget on top of it."""
    budget = getattr(check, "budget", 0.0)
    return check.timeout_s + float(budget)
