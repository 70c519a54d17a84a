"""One try at a job: its number, its own port and folder, and the processes that are kept on each node."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.launch.job import Job
from runbook.launch.naming import LAUNCH
from runbook.launch.ranks import Seat, Seating, seating
from runbook.launch.render import launch_recipe
from runbook.launch.script import Script, write
from runbook.model.inventory import Inventory
from runbook.node.journal import attempt_folder

BY_LAUNCHER = "by-launcher"
"""The folder in an attempt's where a launcher writes what its ranks do; the keeper gives these files their names."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process that a keeper keeps: a rank, or a launcher with all ranks of its node. `name` is that of its files."""

    name: str
    node: str
    local_rank: int
    ranks: tuple[int, ...]
    gpus: tuple[int, ...] = ()
    each: tuple[ProcessSpec, ...] = ()  # the ranks that a launcher starts, each with files of its own

    @property
    def rank(self) -> int | None:
        """The rank that speaks there; None where it may be any of several."""
        return self.ranks[0] if len(self.ranks) == 1 and not self.each else None

    @property
    def voices(self) -> tuple[ProcessSpec, ...]:
        """Whose output there is: of the process itself, and of the ranks that it starts."""
        return (self, *self.each)

    @property
    def label(self) -> str:
        if self.each:
            ranks = f"rank {self.ranks[0]}" if len(self.ranks) == 1 else f"ranks {self.ranks[0]}-{self.ranks[-1]}"
            return f"the launcher of {ranks} on {self.node}"
        if len(self.ranks) == 1:
            return f"rank {self.ranks[0]} on {self.node}"
        return f"ranks {self.ranks[0]}-{self.ranks[-1]} on {self.node}"


@dataclass(frozen=True)
class Attempt:
    """`number` counts the tries of its stage, `serial` those of the whole run. `token` is new for every try: what an older
    one left behind does not have it."""

    job: Job
    number: int
    serial: int
    token: str
    inventory: Inventory
    seating: Seating
    places: tuple[ProcessSpec, ...]

    @property
    def folder(self) -> str:
        """Below the job's folder on a node, and below `logs/` of the run here."""
        return attempt_folder(self.serial)

    @property
    def port(self) -> int:
        return self.inventory.rendezvous.port

    def on(self, node: str) -> tuple[ProcessSpec, ...]:
        return tuple(place for place in self.places if place.node == node)

    def script(self, node: str, folder: str, made_from: Sequence[str]) -> Script:
        """`folder`: where the attempt's files lie there."""
        seat = self.seating.seats[node]
        recipe = launch_recipe(
            self.seating, seat, self.job, name=LAUNCH, made_from=made_from, logs=f"{folder}/{BY_LAUNCHER}"
        )
        return write(recipe, "sh")


def make_attempt(job: Job, inventory: Inventory, number: int, serial: int) -> Attempt:
    """The first try of a stage uses the inventory's port, each later one another: the old one may be what failed."""
    rendezvous = replace(inventory.rendezvous, port=port_of(inventory, number))
    inventory = replace(inventory, rendezvous=rendezvous)
    seats = seating(inventory)
    return Attempt(job, number, serial, secrets.token_hex(8), inventory, seats, tuple(_places(job, seats)))


def port_of(inventory: Inventory, number: int) -> int:
    """The rendezvous port of a try, from 1: the inventory's own, then those that its network promises to be open, then
    those that follow its own."""
    own = inventory.rendezvous.port
    promised = [port for low, high in inventory.network.ports for port in range(low, high + 1) if port != own]
    ports = [own, *promised[:number]]
    ports += [own + step for step in range(1, number + 1) if own + step not in ports and own + step < 65536]
    return ports[(number - 1) % len(ports)]


def _places(job: Job, seats: Seating) -> list[ProcessSpec]:
    found = []
    for name, seat in seats.seats.items():
        if not job.starts_each:
            ranks = tuple(rank.rank for rank in seat.ranks)
            label = f"ranks-{ranks[0]:05d}-{ranks[-1]:05d}.{name}.launcher"
            found.append(ProcessSpec(label, name, 0, ranks, tuple(seat.node.gpus), tuple(_each(seat))))
        else:
            found += _each(seat)
    return found


def _each(seat: Seat) -> list[ProcessSpec]:
    """One place a rank of the node."""
    return [
        ProcessSpec(
            rank_name(seat.node.name, rank.rank, rank.local_rank),
            seat.node.name,
            rank.local_rank,
            (rank.rank,),
            () if rank.device is None else (rank.device,),
        )
        for rank in seat.ranks
    ]


def rank_name(node: str, rank: int, local_rank: int) -> str:
    """Of a rank's files."""
    return f"rank-{rank:05d}.{node}.l{local_rank}"


def about(attempt: Attempt, node: str, facts: Mapping[str, object]) -> dict[str, object]:
    """What lies on the node as `job.json`, for whoever comes later, perhaps from another machine."""
    watch = attempt.job.watch
    return {
        **facts,
        "progress": watch.progress.pattern if watch and watch.progress else None,
        "stage": attempt.job.stage.name,
        "launcher": attempt.job.launcher,
        "grace_s": attempt.job.grace_s,
        "command": list(attempt.job.programs[node].command),
        "attempt": attempt.serial,
        "port": attempt.port,
        "gpus": [gpu for place in attempt.on(node) for gpu in place.gpus],
        "node": node,
        "nodes": {name: [rank.rank for rank in seat.ranks] for name, seat in attempt.seating.seats.items()},
    }
