"""From a node's place in the job to its launch scripts: what `run` pushes and what `render` writes are made here."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.launch.environment import node_environment, rank_environment
from runbook.launch.job import Job
from runbook.launch.launchers import FOREIGN, start
from runbook.launch.ranks import NodeRanks, RankLayout
from runbook.launch.spec import Guards, ScriptProcess, ScriptSpec, Word


def ranks_spec(layout: RankLayout, node_ranks: NodeRanks, *, name: str, made_from: Sequence[str]) -> ScriptSpec:
    """A script that starts runbook's own `rank.py` as every rank of the node: what connection and AllReduce use."""
    return ScriptSpec(
        node=node_ranks.node.name,
        name=name,
        made_from=tuple(made_from),
        world_size=layout.world_size,
        environment=node_environment(layout, node_ranks),
        processes=tuple(ScriptProcess(rank.local_rank, rank_environment(rank)) for rank in node_ranks.ranks),
        command=(node_ranks.node.interpreter, "-u", "./rank.py"),
        activate=node_ranks.node.activate,
        unset_prefixes=FOREIGN,
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
    """A script that starts the job on the node; without a job it takes the command as its own arguments.

    `logs` is a folder on the node where a launcher keeps its ranks' output apart; None: it is all the launcher's.

    Nobody looks on while it runs, so it guards itself. Raises CannotLaunch.
    """
    node = node_ranks.node
    program = job.programs[node.name] if job else None
    environment = node_environment(layout, node_ranks) | dict(program.env if program else {})
    launcher, command = job.launcher if job else "direct", program.command if program else None
    begun = start(launcher, layout, node_ranks, environment, command, logs)
    address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    return ScriptSpec(
        node=node.name,
        name=name,
        made_from=tuple(made_from),
        world_size=layout.world_size,
        environment=begun.environment,
        processes=begun.processes,
        command=_as_given(begun.command, program.workdir) if begun.command and program else None,
        activate=node.activate,
        workdir=program.workdir if program else None,
        unset=begun.unset,
        unset_prefixes=FOREIGN,
        ranks=len(node_ranks.ranks),
        guards=Guards(
            python=node.interpreter,
            address=address if isinstance(address, str) else layout.address,
            port=int(port) if node_ranks.node_rank == 0 and isinstance(port, str) and port.isdecimal() else None,
            several_nodes=layout.meets_over_network,
        ),
    )


def _as_given(command: Sequence[str], workdir: str | None) -> tuple[str, ...]:
    """The words of a user's command: only the program is looked for, from where it runs; the rest is not ours to read."""
    program, *words = command
    if workdir is not None and program.startswith("./"):
        beside = workdir.startswith(("/", "~", "\\")) or workdir[1:2] == ":"
        program = f"{workdir if beside else './' + workdir.removeprefix('./')}/{program[2:]}"
    return (program, *map(Word, words))
