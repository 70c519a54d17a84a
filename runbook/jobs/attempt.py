"""One attempt of a job: its number, its port and folder, and the processes that keepers start on each node."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runbook.launch.job import Job
from runbook.launch.launchers import launch_spec
from runbook.launch.ranks import NodeRanks, RankLayout, rank_layout
from runbook.launch.script import LAUNCH_SCRIPT_NAME, Script, make_script
from runbook.model.inventory import Inventory
from runbook.model.units import range_text
from runbook.node.journal import attempt_folder

LAUNCHER_LOGS_FOLDER = "by-launcher"
"""The folder inside an attempt's folder in which a launcher writes the output of its ranks. The keeper links these
files to the names that they would have without a launcher."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process that a keeper starts: a rank, or a launcher with all ranks of its node. `name` is the name of the
    process's files, without an ending."""

    name: str
    node: str
    local_rank: int
    ranks: tuple[int, ...]
    gpus: tuple[int, ...] = ()
    each: tuple[ProcessSpec, ...] = ()  # the ranks that this launcher starts, each with its own files

    @property
    def rank(self) -> int | None:
        """The rank whose output this process writes; None for a launcher, whose output may be any rank's."""
        return self.ranks[0] if len(self.ranks) == 1 and not self.each else None

    @property
    def voices(self) -> tuple[ProcessSpec, ...]:
        """All sources of output: this process, and the ranks that it starts as a launcher."""
        return (self, *self.each)

    @property
    def label(self) -> str:
        """In words, the process as messages call it."""
        ranks = f"rank{'s' * (len(self.ranks) > 1)} {range_text(self.ranks[0], self.ranks[-1])} on {self.node}"
        return f"the launcher of {ranks}" if self.each else ranks


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job. `number` counts the attempts of its stage, `serial` those of the whole run. `token` is new
    for every attempt, so that files which an older attempt left behind are recognized by theirs."""

    job: Job
    number: int
    serial: int
    token: str
    inventory: Inventory
    layout: RankLayout
    places: tuple[ProcessSpec, ...]

    @property
    def folder(self) -> str:
        """The name of the attempt's folder: in the job's folder on a node, and in `logs/` of the run folder."""
        return attempt_folder(self.serial)

    @property
    def port(self) -> int:
        return self.inventory.rendezvous.port

    def script(self, node: str, folder: str, made_from: Sequence[str]) -> Script:
        """The launch script for a node; `folder` is the path of the attempt's folder there."""
        node_ranks = self.layout.by_node[node]
        spec = launch_spec(
            self.layout,
            node_ranks,
            self.job,
            name=LAUNCH_SCRIPT_NAME,
            made_from=made_from,
            logs=f"{folder}/{LAUNCHER_LOGS_FOLDER}",
        )
        return make_script(replace(spec, stacks=self.job.stacks), "sh")


def make_attempt(job: Job, inventory: Inventory, number: int, serial: int) -> Attempt:
    """Attempt `number` of a stage. The first attempt uses the inventory's rendezvous port; each later one uses another,
    because the old port may be the reason of the failure."""
    rendezvous = replace(inventory.rendezvous, port=attempt_port(inventory, number))
    inventory = replace(inventory, rendezvous=rendezvous)
    by_node = rank_layout(inventory)
    return Attempt(
        job=job,
        number=number,
        serial=serial,
        token=secrets.token_hex(8),
        inventory=inventory,
        layout=by_node,
        places=tuple(_process_specs(job, by_node)),
    )


def attempt_port(inventory: Inventory, number: int) -> int:
    """The rendezvous port of attempt `number`, counted from 1: the inventory's own port, then the ports that its
    `network:` promises to be open, then the ports that follow its own."""
    own = inventory.rendezvous.port
    promised = [port for low, high in inventory.network.ports for port in range(low, high + 1) if port != own]
    ports = [own, *promised[:number]]
    ports += [own + step for step in range(1, number + 1) if own + step not in ports and own + step < 65536]
    return ports[(number - 1) % len(ports)]


def _process_specs(job: Job, by_node: RankLayout) -> list[ProcessSpec]:
    """The processes that keepers start on all nodes: a launcher for each node, or each rank."""
    found = []
    for name, node_ranks in by_node.by_node.items():
        if not job.starts_each:
            ranks = tuple(rank.rank for rank in node_ranks.ranks)
            label = f"ranks-{ranks[0]:05d}-{ranks[-1]:05d}.{name}.launcher"
            found.append(
                ProcessSpec(label, name, 0, ranks, tuple(node_ranks.node.gpus), tuple(_rank_specs(node_ranks)))
            )
        else:
            found += _rank_specs(node_ranks)
    return found


def _rank_specs(node_ranks: NodeRanks) -> list[ProcessSpec]:
    """One process for each rank of the node."""
    return [
        ProcessSpec(
            f"{rank.file_stem}.l{rank.local_rank}",
            rank.node,
            rank.local_rank,
            (rank.rank,),
            () if rank.device is None else (rank.device,),
        )
        for rank in node_ranks.ranks
    ]


def job_description(attempt: Attempt, node: str, facts: Mapping[str, object]) -> dict[str, object]:
    """The contents of `job.json` on a node: the job's description for later commands, perhaps from another machine."""
    watch = attempt.job.launch.watch
    return {
        **facts,
        "progress": watch.progress.pattern if watch and watch.progress else None,
        "stage": attempt.job.stage.name,
        "launcher": attempt.job.launch.launcher,
        "grace_s": attempt.job.launch.grace_s,
        "command": list(attempt.job.programs[node].command),
        "attempt": attempt.serial,
        "port": attempt.port,
        "gpus": [rank.device for rank in attempt.layout.by_node[node].ranks if rank.device is not None],
        "node": node,
        "nodes": {
            name: [rank.rank for rank in node_ranks.ranks] for name, node_ranks in attempt.layout.by_node.items()
        },
    }
