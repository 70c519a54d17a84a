"""What does a `launch:` stage start on each of its nodes: the command, environment and workdir, with all templates
filled in?"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from runbook.files.templating import as_text, fill_templates, is_template, template_variables
from runbook.launch.ranks import NodeRanks, RankLayout
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.model.inventory import EnvValue
from runbook.model.node_ranges import fold
from runbook.model.playbook import LaunchKeyPath, LaunchSettings, Stage

RANK_STARTING_LAUNCHERS = ("torchrun", "torch.distributed.launch")
"""Launchers that run as one process on each node and start its ranks. Torch's official wheels for Windows cannot run
them."""

UNUSED_SPARE = "a spare: no node had to be replaced by it"
"""The reason of the skip of a spare that a launch did not need."""


@dataclass(frozen=True, slots=True)
class JobProgram:
    """What the stage starts as every rank of one node, without the words of a launcher."""

    command: tuple[str, ...]
    env: Mapping[str, EnvValue]
    workdir: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """A `launch:` stage with its templates filled in. `programs`: by the node's name; nodes with the same values share
    one."""

    stage: Stage
    programs: Mapping[str, JobProgram]
    spares: tuple[str, ...] = ()  # nodes without ranks: each may take the place of one that is lost or broken

    @property
    def launch(self) -> LaunchSettings:
        return self.stage.launch

    @property
    def starts_each(self) -> bool:
        """Whether the launch script starts each rank as a process of its own, instead of a launcher that starts
        them."""
        return self.launch.launcher not in RANK_STARTING_LAUNCHERS

    @property
    def stacks(self) -> bool:
        """Whether the job's ranks are prepared to be asked for their stacks."""
        return self.launch.watch is None or self.launch.watch.stacks

    def span(self, *place: str | int) -> Span | None:
        """The place in the playbook of the value at `place`; if that is not known, the place of the stage."""
        return self.stage.launch_spans.get(place, self.stage.span)


def node_variables(node_ranks: NodeRanks) -> dict[str, object]:
    """The variables that describe a node in the templates that are filled for it."""
    return {
        "node": node_ranks.node.name,
        "address": node_ranks.node.address,
        "python": node_ranks.node.interpreter,
        "node_rank": node_ranks.node_rank,
        "first_rank": node_ranks.ranks[0].rank,
        "ranks_here": len(node_ranks.ranks),
        "gpus_here": len(node_ranks.node.gpus),
    }


def node_variable_names(nodes: Iterable[NodeRanks]) -> set[str]:
    """The names of all template variables whose values can differ from node to node."""
    return {name for one in nodes for name in (*one.node.vars, *node_variables(one))}


def make_job(
    stage: Stage,
    layout: RankLayout,
    facts: Mapping[str, object],
    set_above: Mapping[str, object],
    spares: tuple[str, ...] = (),
) -> Job:
    """The job of a `launch` stage. Raises FilesWrong with every template that cannot be filled.

    Templates see these variables, the weakest first: `facts` of the cluster, facts of the node, the node's `vars`, and
    `set_above`: the playbook's vars and `-e`.
    """
    launch = stage.launch
    programs = _Filling(stage, JobProgram(launch.command, launch.env, launch.workdir)).programs(
        layout, facts, set_above
    )
    return Job(stage, programs, spares)


class _Filling:
    """Fills the templates of one program for all of its nodes. A template without values of single nodes is filled only
    once."""

    def __init__(self, stage: Stage, blank: JobProgram) -> None:
        self._stage = stage
        self._blank = blank
        self._problems: dict[Problem, list[str]] = {}

    def programs(
        self, layout: RankLayout, facts: Mapping[str, object], set_above: Mapping[str, object]
    ) -> dict[str, JobProgram]:
        """The program of each node, by its name. Raises FilesWrong with all problems."""
        templates = {place: text for place, text in _template_texts(self._blank).items() if is_template(text)}
        by_node = list(layout.by_node.values())
        of_nodes = node_variable_names(by_node) - set_above.keys()
        own = {place: text for place, text in templates.items() if template_variables(text) & of_nodes}
        first = {**facts, **node_variables(by_node[0]), **by_node[0].node.vars, **set_above}
        shared = self._filled({place: text for place, text in templates.items() if place not in own}, first, "")
        same = _with_texts(self._blank, shared)
        made: dict[str, JobProgram] = {}
        for node_ranks in by_node:
            if not own:
                made[node_ranks.node.name] = same
                continue
            variables = {**facts, **node_variables(node_ranks), **node_ranks.node.vars, **set_above}
            made[node_ranks.node.name] = _with_texts(same, self._filled(own, variables, node_ranks.node.name))
        if self._problems:
            raise FilesWrong(
                [problem_on_nodes(problem, nodes, len(by_node)) for problem, nodes in self._problems.items()]
            )
        return made

    def _filled(
        self, texts: Mapping[LaunchKeyPath, str], variables: Mapping[str, object], node: str
    ) -> dict[LaunchKeyPath, str]:
        """The texts with their templates filled in; problems are collected."""
        found: dict[LaunchKeyPath, str] = {}
        for place, text in texts.items():
            span = self._stage.launch_spans.get(place, self._stage.span)
            try:
                found[place] = _program_word(fill_templates(text, variables, span), text, span)
            except FilesWrong as wrong:
                for problem in wrong.problems:
                    self._problems.setdefault(problem, []).append(node)
        return found


def _template_texts(program: JobProgram) -> dict[LaunchKeyPath, str]:
    """All texts of a program that may have templates, by their places."""
    texts: dict[LaunchKeyPath, str] = {("command", index): word for index, word in enumerate(program.command)}
    texts |= {("env", name): value for name, value in program.env.items() if isinstance(value, str)}
    if program.workdir is not None:
        texts["workdir",] = program.workdir
    return texts


def _with_texts(program: JobProgram, found: Mapping[LaunchKeyPath, str]) -> JobProgram:
    """The program with these texts in their places."""
    if not found:
        return program
    return JobProgram(
        tuple(found.get(("command", index), word) for index, word in enumerate(program.command)),
        {name: found.get(("env", name), value) for name, value in program.env.items()},
        found.get(("workdir",), program.workdir),
    )


def _program_word(value: object, text: str, span: Span | None) -> str:
    """A template's value as a program gets it: text, or a number as it is written. Raises FilesWrong for other
    values."""
    if isinstance(value, str | int | float):
        return str(as_text(value))
    kind = "nothing" if value is None else "a list" if isinstance(value, list) else "a mapping"
    help = "a program gets text: join a list, for example {{ sizes | join(',') }}"
    raise FilesWrong.of("template.not-text", f"`{text}` gives {kind}", span=span, help=help)


def problem_on_nodes(problem: Problem, nodes: Collection[str], all_nodes: int) -> Problem:
    """The problem; if not all nodes have it, with the names of those that do."""
    if len(nodes) == all_nodes or "" in nodes:
        return problem
    return replace(problem, message=f"{problem.message} on {fold(nodes)}")
