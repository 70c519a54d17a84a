"""From a node's seat in the job to its launch scripts: what `run` pushes and what `render` writes are made here."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.launch.environment import node_environment, rank_environment
from runbook.launch.job import Job
from runbook.launch.launchers import FOREIGN, start
from runbook.launch.ranks import Seat, Seating
from runbook.launch.recipe import Guards, Recipe, ScriptProcess, Word


def ranks_recipe(seating: Seating, seat: Seat, *, name: str, made_from: Sequence[str]) -> Recipe:
    """A script that starts runbook's own `rank.py` as every rank of the node: what connection and AllReduce use."""
    return Recipe(
        node=seat.node.name,
        name=name,
        made_from=tuple(made_from),
        world_size=seating.world_size,
        environment=node_environment(seating, seat),
        processes=tuple(ScriptProcess(rank.local_rank, rank_environment(rank)) for rank in seat.ranks),
        command=(seat.node.interpreter, "-u", "./rank.py"),
        activate=seat.node.activate,
        unset_prefixes=FOREIGN,
        ranks=len(seat.ranks),
    )


def launch_recipe(
    seating: Seating, seat: Seat, job: Job | None, *, name: str, made_from: Sequence[str], logs: str | None = None
) -> Recipe:
    """A script that starts the job on the node; without a job it takes the command as its own arguments.

    `logs` is a folder on the node where a launcher keeps its ranks' output apart; None: it is all the launcher's.

    Nobody looks on while it runs, so it guards itself. Raises CannotLaunch.
    """
    node = seat.node
    program = job.programs[node.name] if job else None
    environment = node_environment(seating, seat) | dict(program.env if program else {})
    launcher, command = job.launcher if job else "direct", program.command if program else None
    begun = start(launcher, seating, seat, environment, command, logs)
    address, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    return Recipe(
        node=node.name,
        name=name,
        made_from=tuple(made_from),
        world_size=seating.world_size,
        environment=begun.environment,
        processes=begun.processes,
        command=_as_given(begun.command, program.workdir) if begun.command and program else None,
        activate=node.activate,
        workdir=program.workdir if program else None,
        unset=begun.unset,
        unset_prefixes=FOREIGN,
        ranks=len(seat.ranks),
        guards=Guards(
            python=node.interpreter,
            address=address if isinstance(address, str) else seating.address,
            port=int(port) if seat.node_rank == 0 and isinstance(port, str) and port.isdecimal() else None,
            several_nodes=seating.meets_over_network,
        ),
    )


def _as_given(command: Sequence[str], workdir: str | None) -> tuple[str, ...]:
    """The words of a user's command: only the program is looked for, from where it runs; the rest is not ours to read."""
    program, *words = command
    if workdir is not None and program.startswith("./"):
        beside = workdir.startswith(("/", "~", "\\")) or workdir[1:2] == ":"
        program = f"{workdir if beside else './' + workdir.removeprefix('./')}/{program[2:]}"
    return (program, *map(Word, words))
