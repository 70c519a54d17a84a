"""What does a launcher start on a node: how many processes, with which command, and which variables must they not
inherit? The resulting spec becomes the launch script that `run` pushes and `render` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runbook.launch.job import RANK_STARTING_LAUNCHERS, Job
from runbook.launch.launcher_lines import LauncherLine, is_python, launcher_line
from runbook.launch.preconditions import Guards
from runbook.launch.quote import Word
from runbook.launch.ranks import NodeRanks, RankLayout, endpoint_text, node_environment, rank_environment
from runbook.launch.script import ScriptProcess, ScriptSpec
from runbook.model.errors import Problem
from runbook.model.inventory import EnvValue, Node
from runbook.model.units import parse_whole_number

TORCHRUN_OPTION_PREFIX = "PET_"
"""The prefix of variables from which torchrun takes options as well, such as PET_NODE_RANK
(torch.distributed.argparse_util)."""

FOREIGN_VARIABLE_PREFIXES = ("TORCHELASTIC_", TORCHRUN_OPTION_PREFIX)
"""Prefixes of variables that another torchrun may have set. A rank that inherits them waits for that torchrun's store,
and a torchrun that inherits them takes them for its own options."""

OTHER_MACHINES_OPTIONS = frozenset(("node-rank", "rdzv-endpoint", "rdzv-conf", "master-addr"))
"""Options that tell torch's launchers about other machines."""

_SET_BY_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
"""Variables that torchrun sets for each rank, so that the launch script must not."""
# This variable would give every node as many ranks as this one has.
_IDENTICAL_RANKS_VARIABLE = "TORCH_ELASTIC_WORKER_IDENTICAL"
_UNSPECIFIC_PYTHONS = ("python", "python3")
"""Names of a Python that leave open which one is meant: the inventory's is taken."""


class CannotLaunch(ValueError):
    """The launcher cannot start this command; the message says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """What is started on one node. `environment`: the variables that all ranks of the node share. `command`: None if
    the script takes it as arguments. `unset`: names of variables that must not be inherited."""

    environment: Mapping[str, EnvValue]
    processes: tuple[ScriptProcess, ...]
    command: tuple[str, ...] | None
    unset: tuple[str, ...]


def launcher_start(
    launcher: str,
    layout: RankLayout,
    node_ranks: NodeRanks,
    environment: Mapping[str, EnvValue],
    command: tuple[str, ...] | None,
    logs: str | None = None,
) -> Start:
    """How `launcher` starts `command` on the node of `node_ranks`. Raises CannotLaunch.

    `logs`: the folder for the output of the ranks, if the launcher starts them.
    """
    if launcher in RANK_STARTING_LAUNCHERS:
        if command is None:
            raise CannotLaunch(f"{launcher} needs to know the command")
        kept = {key: value for key, value in environment.items() if key not in _SET_BY_TORCHRUN}
        options = _launcher_words(launcher, layout, node_ranks, environment, command, logs)
        words = (*options, *program_words(launcher, command))
        return Start(kept, (ScriptProcess(0),), words, (*_SET_BY_TORCHRUN, _IDENTICAL_RANKS_VARIABLE))
    if command is not None and command[0].endswith(".py"):
        command = (node_ranks.node.interpreter, *command)
    elif (
        command is not None and command[0] in _UNSPECIFIC_PYTHONS and node_ranks.node.python not in _UNSPECIFIC_PYTHONS
    ):
        command = (node_ranks.node.python, *command[1:])  # the inventory's Python, which `reach` has proved
    processes = tuple(ScriptProcess(rank.local_rank, rank_environment(rank)) for rank in node_ranks.ranks)
    if launcher == "jax":
        environment, processes = _with_jax_variables(layout, node_ranks, environment, processes)
    return Start(environment, processes, command, ())


def _launcher_words(
    launcher: str,
    layout: RankLayout,
    node_ranks: NodeRanks,
    environment: Mapping[str, EnvValue],
    command: tuple[str, ...],
    logs: str | None,
) -> tuple[str, ...]:
    """The words that start the launcher itself, before the job's command. The rendezvous is static: c10d would order
    the nodes as they arrive, and rank 0 could be anywhere."""
    named = command[0] if is_python(command[0]) and re.search(r"[/\\]", command[0]) else None
    # torch.distributed.launch is for old programs, and releases before torch 2 know only names with underscores.
    module, dash = ("torch.distributed.run", "-") if launcher == "torchrun" else ("torch.distributed.launch", "_")
    options = {
        "nnodes": str(len(layout.by_node)),
        "nproc-per-node": str(len(node_ranks.ranks)),
        "node-rank": str(node_ranks.node_rank),
        "master-addr": _text_or_default(environment.get("MASTER_ADDR"), layout.address),
        "master-port": _text_or_default(environment.get("MASTER_PORT"), str(layout.inventory.rendezvous.port)),
    }
    if logs is not None:
        options |= {"log-dir": logs, "redirects": "3"}  # 3: stdout and stderr go into files
    words = [f"--{name.replace('-', dash)}={value}" for name, value in options.items()]
    return (named or node_ranks.node.interpreter, "-m", module, *words)


def program_words(launcher: str, command: tuple[str, ...]) -> tuple[str, ...]:
    """The job's command as a torch launcher takes it: a script, `-m` and a module, or `--no-python` and any program.

    Raises CannotLaunch.
    """
    if command[0].endswith(".py"):
        return command
    if re.split(r"[/\\]", command[0])[-1] == "torchrun":
        raise CannotLaunch(
            f"`launcher: {launcher}` is to start a `torchrun`: leave that and its options out of `command`"
        )
    if is_python(command[0]):
        words = command[1:]
        while words[:1] == ("-u",):  # both launchers give it to Python anyway
            words = words[1:]
        if len(words) > 1 and words[0] == "-m":
            return words
        if words and not words[0].startswith("-"):
            return words
    if launcher == "torchrun":
        return ("--no-python", *command)
    shown = " ".join(command[:3]) + (" …" if len(command) > 3 else "")
    raise CannotLaunch(f"{launcher} starts a Python script or a module, with no options of Python's own, not `{shown}`")


def launcher_problems(job: Job, nodes: Sequence[Node]) -> list[Problem]:
    """The problems because of which the job's launcher cannot start the job on these nodes."""
    commands = list(dict.fromkeys(program.command for program in job.programs.values()))
    if any(not command[0] or command[0].startswith("-") for command in commands):
        message = "the command starts with an option or with nothing, not with a program"
        help = "for example `[train.py, --epochs, 3]` or `[python, -m, package.train]`"
        return [Problem("playbook.launcher-program", message, job.span("command", 0), help)]
    if job.launch.launcher not in RANK_STARTING_LAUNCHERS:
        return []
    if any(node.windows for node in nodes):
        message = f"{job.launch.launcher} cannot start on Windows: PyTorch's official wheels have no libuv there"
        help = (
            "its rendezvous needs libuv, and USE_LIBUV=0 does not reach it; `launcher: direct` starts every rank itself"
        )
        return [Problem("playbook.launcher-on-windows", message, job.span("launcher"), help)]
    for command in commands:
        try:
            program_words(job.launch.launcher, command)
        except CannotLaunch as error:
            other = "`launcher: torchrun` takes any program, and gives LOCAL_RANK in the environment"
            return [
                Problem(
                    "playbook.launcher-program",
                    str(error),
                    job.span("command", 0),
                    None if job.launch.launcher == "torchrun" else other,
                )
            ]
    return []


def nested_launcher_line(job: Job, nodes: Sequence[Node]) -> LauncherLine | None:
    """The line of a torch launcher in the command of a job with `launcher: direct` and several ranks, if no option
    tells it about other machines; else None. Each rank would start a world of its own that ends well. Launchers that
    are not torch's are not reported: a file or a scheduler may tell them about other machines."""
    if job.launch.launcher != "direct" or sum(node.slots for node in nodes) < 2:
        return None
    for program in job.programs.values():
        line = launcher_line(program.command)
        by_variable = any(name.startswith(TORCHRUN_OPTION_PREFIX) for name in program.env)
        if line and line.launcher and not by_variable and not OTHER_MACHINES_OPTIONS & line.options.keys():
            return line
    return None


def _with_jax_variables(
    layout: RankLayout, node_ranks: NodeRanks, environment: Mapping[str, EnvValue], processes: tuple[ScriptProcess, ...]
) -> tuple[Mapping[str, EnvValue], tuple[ScriptProcess, ...]]:
    """The environment and processes with the variables for the coordinator and the devices that jax.distributed reads.
    The program itself passes RANK and WORLD_SIZE to it.

    CUDA_VISIBLE_DEVICES already renumbers the node's GPUs from 0, and JAX counts among these.
    """
    address = _text_or_default(environment.get("MASTER_ADDR"), layout.address)
    port = _text_or_default(environment.get("MASTER_PORT"), str(layout.inventory.rendezvous.port))
    coordinator = endpoint_text(address, port)
    if node_ranks.node.gpus:
        processes = tuple(
            ScriptProcess(one.local_rank, {**one.environment, "JAX_LOCAL_DEVICE_IDS": str(one.local_rank)})
            for one in processes
        )
    return {"JAX_COORDINATOR_ADDRESS": coordinator, **environment}, processes


def _text_or_default(value: EnvValue | None, default: str) -> str:
    """The value if it is a text, which the user may have set; for a secret, which must stay out of the command line,
    the default."""
    return value if isinstance(value, str) else default


def ranks_spec(layout: RankLayout, node_ranks: NodeRanks, *, name: str, made_from: Sequence[str]) -> ScriptSpec:
    """The spec of a script that starts runbook's own `rank.py` as every rank of the node, for checks such as
    AllReduce."""
    return ScriptSpec(
        node=node_ranks.node.name,
        name=name,
        made_from=tuple(made_from),
        world_size=layout.world_size,
        environment=node_environment(layout, node_ranks),
        processes=tuple(ScriptProcess(rank.local_rank, rank_environment(rank)) for rank in node_ranks.ranks),
        command=(node_ranks.node.interpreter, "-u", "./rank.py"),
        activate=node_ranks.node.activate,
        unset_prefixes=FOREIGN_VARIABLE_PREFIXES,
        ranks=len(node_ranks.ranks),
    )


def launch_spec(
    layout: RankLayout,
    node_ranks: NodeRanks,
    job: Job | None,
    *,
    name: str,
    made_from: Sequence[str],
    logs: str | None = None,
) -> ScriptSpec:
    """The spec of a script that starts the job on the node; without a job, the script's arguments are the command.

    `logs`: a folder on the node in which a launcher keeps the output of each rank apart; with None, all output is the
    launcher's own.

    No controller has to watch the script, so it checks its preconditions itself. Raises CannotLaunch.
    """
    node = node_ranks.node
    program = job.programs[node.name] if job else None
    environment = node_environment(layout, node_ranks) | dict(program.env if program else {})
    launcher, command = job.launch.launcher if job else "direct", program.command if program else None
    begun = launcher_start(launcher, layout, node_ranks, environment, command, logs)
    address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    return ScriptSpec(
        node=node.name,
        name=name,
        made_from=tuple(made_from),
        world_size=layout.world_size,
        environment=begun.environment,
        processes=begun.processes,
        command=_resolved_command(begun.command, program.workdir) if begun.command and program else None,
        activate=node.activate,
        workdir=program.workdir if program else None,
        unset=begun.unset,
        unset_prefixes=FOREIGN_VARIABLE_PREFIXES,
        ranks=len(node_ranks.ranks),
        guards=Guards(
            python=node.interpreter,
            address=address if isinstance(address, str) else layout.address,
            port=parse_whole_number(port) if node_ranks.node_rank == 0 and isinstance(port, str) else None,
            several_nodes=layout.meets_over_network,
        ),
    )


def is_anchored_path(folder: str) -> bool:
    """Whether the path of a folder begins at the root, a drive or the home folder."""
    return folder.startswith(("/", "~", "\\")) or folder[1:2] == ":"


def _resolved_command(command: Sequence[str], workdir: str | None) -> tuple[str, ...]:
    """The words of a user's command. Only the program (`./x`: in the workdir) and a Python script at `~/` are looked up
    as files; all other words reach the program as they are."""
    program, *words = command
    if workdir is not None and program.startswith("./"):
        program = f"{workdir if is_anchored_path(workdir) else './' + workdir.removeprefix('./')}/{program[2:]}"
    script = next((at for at, one in enumerate(words) if one.endswith(".py") and not one.startswith("-")), None)
    at_home = script is not None and words[script].startswith("~/")
    return (program, *(one if at_home and at == script else Word(one) for at, one in enumerate(words)))
