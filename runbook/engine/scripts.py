"""The files of every node for a plan: a script for each stage that starts ranks, and what has to lie beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from runbook.engine.plan import Plan, PlannedStage
from runbook.engine.unquotable import blamed
from runbook.launch.job import Job
from runbook.launch.launchers import STARTS_ITS_RANKS, CannotLaunch, program_words
from runbook.launch.naming import LAUNCH
from runbook.launch.quote import CannotQuote
from runbook.launch.ranks import RankLayout, layout
from runbook.launch.render import launch_spec, ranks_spec
from runbook.launch.script import write
from runbook.launch.spec import ScriptSpec
from runbook.load.origins import Origins
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Node

SCRIPT_MODE = 0o700
FILE_MODE = 0o600

StageLayout = tuple[PlannedStage, RankLayout]


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """`secret`: it holds values that nobody may see."""

    data: bytes
    mode: int = FILE_MODE
    secret: bool = False


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """Everything for one node, by file name. `launch` is the script for its job, or for any command it is given; empty for a
    spare, which has no rank before it takes somebody's place."""

    node: Node
    launch: str
    takes_command: bool
    files: Mapping[str, ScriptFile]


def node_files(plan: Plan, origins: Origins) -> list[NodeFiles]:
    """The files of every node of the plan. Raises FilesWrong with everything that no script can do or carry."""
    problems: dict[Problem, None] = {}
    stages: list[StageLayout] = []
    whole = layout(plan.inventory)
    for stage in plan.stages:
        if not stage.starts_ranks or stage.skip is not None:
            continue
        found = _cannot_start(stage)
        problems.update(dict.fromkeys(found))
        if not found:
            stages.append((stage, whole if stage.inventory is plan.inventory else layout(stage.inventory)))
    made: list[NodeFiles] = []
    for node in plan.inventory.nodes:
        files: dict[str, ScriptFile] = {}
        launch, takes_command = "", False
        for spec, job in _specs(plan, stages, whole, node):
            try:
                script = write(spec, node.shell)
            except CannotQuote as error:
                problems.update(dict.fromkeys(blamed(error, spec, node, job, origins)))
                continue
            for name, data in script.files.items():
                files[name] = ScriptFile(data, SCRIPT_MODE) if name == script.name else ScriptFile(data, secret=True)
            if spec.name == LAUNCH:
                launch, takes_command = script.name, spec.command is None
            elif job is None:
                files["rank.py"] = RANK_PROGRAM
        if files and not problems:  # else nothing will be written: only look for more
            made.append(NodeFiles(node, launch, takes_command, files))
    if problems:
        raise FilesWrong(list(problems))
    return made


RANK_PROGRAM = ScriptFile(resources.files("runbook.node").joinpath("rank.py").read_bytes())


def _specs(
    plan: Plan, stages: Sequence[StageLayout], whole: RankLayout, node: Node
) -> Iterator[tuple[ScriptSpec, Job | None]]:
    """One a stage that starts ranks on the node. The first job's is `launch`; without one that takes any command."""
    launched = False
    for stage, by_node in stages:
        node_ranks = by_node.by_node.get(node.name)
        if node_ranks is None:
            continue
        if isinstance(stage.work, Job):
            name = stage.script if launched else LAUNCH
            yield launch_spec(by_node, node_ranks, stage.work, name=name, made_from=plan.sources), stage.work
            launched = True
        else:
            yield ranks_spec(by_node, node_ranks, name=stage.script, made_from=plan.sources), None
    if not launched and not any(node.name in stage.spares for stage, _ in stages):
        yield launch_spec(whole, whole.by_node[node.name], None, name=LAUNCH, made_from=plan.sources), None


def _cannot_start(stage: PlannedStage) -> list[Problem]:
    """Why the stage's launcher cannot do what is asked of it."""
    job = stage.work
    if not isinstance(job, Job):
        return []
    commands = list(dict.fromkeys(program.command for program in job.programs.values()))
    if any(not command[0] or command[0].startswith("-") for command in commands):
        message = "the command starts with an option or with nothing, not with a program"
        help = "for example `[train.py, --epochs, 3]` or `[python, -m, package.train]`"
        return [Problem("playbook.launcher-program", message, job.span("command", 0), help)]
    if job.launcher not in STARTS_ITS_RANKS:
        return []
    if any(node.windows for node in stage.inventory.nodes):
        message = f"{job.launcher} cannot start on Windows: PyTorch's official wheels have no libuv there"
        help = (
            "its rendezvous needs libuv, and USE_LIBUV=0 does not reach it; `launcher: direct` starts every rank itself"
        )
        return [Problem("playbook.launcher-on-windows", message, job.span("launcher"), help)]
    for command in commands:
        try:
            program_words(job.launcher, command)
        except CannotLaunch as error:
            other = "`launcher: torchrun` takes any program, and gives LOCAL_RANK in the environment"
            return [
                Problem(
                    "playbook.launcher-program",
                    str(error),
                    job.span("command", 0),
                    None if job.launcher == "torchrun" else other,
                )
            ]
    return []
