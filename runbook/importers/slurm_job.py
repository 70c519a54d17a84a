"""Makes the inventory of a Slurm job from what Slurm itself says of it: nodes, addresses, GPUs, and a free port."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

from runbook.files.inventory_draft import Draft, NodeDraft, SettingPath, made_from
from runbook.model.errors import Unreachable
from runbook.model.units import parse_whole_number
from runbook.transport.slurm import (
    SlurmJob,
    SlurmNode,
    no_allocation_failure,
    no_step_failure,
    node_fault,
    query_slurm_job,
    query_slurm_nodes,
    run_on_job_node,
    run_slurm_program,
)

JOB_PORTS = range(20_000, 31_990)
"""Ports for jobs: below those that kernels give out by themselves, above those of services."""

PORTS_PER_JOB = 11
"""Ports of one job: the rendezvous port, and ten more between the nodes."""

SOCKETS_COMMAND = "cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null; exit 0"


def draft_of_allocation(number: str | None) -> tuple[Draft, list[str]]:
    """The inventory of this job, or of the job that runbook is started in, and notes on it for the user.

    Raises Unreachable if there is no such job, if it has no nodes, or if Slurm could not be asked.
    """
    number = number or os.environ.get("SLURM_JOB_ID")
    if not number:
        raise no_allocation_failure()
    job = query_slurm_job(number)
    if over := no_step_failure(job, None):
        raise over
    nodes = query_slurm_nodes(job.nodes)
    chosen = [nodes.get(name, SlurmNode(name, name, (), silent=False, reason="")) for name in job.nodes]
    notes = [ill.says for node in chosen if (ill := node_fault(node))]
    try:
        port = first_free_port_block(
            job, used_local_ports(run_on_job_node(job.id, job.nodes[0], "/bin/sh", "-c", SOCKETS_COMMAND))
        )
    except Unreachable as error:
        if error.cause == "slurm-job-unknown":
            raise  # the job is another user's
        port = first_free_port_block(job, ())
        notes.append(f"whether port {port} is free on {job.nodes[0]} could not be asked: {error.says}")
    return draft_of_job(job, chosen, _gpu_numbers_in_job(job), port), notes


def draft_of_job(job: SlurmJob, nodes: list[SlurmNode], gpus: Mapping[str, tuple[int, ...]], port: int) -> Draft:
    """The inventory of a job. Pure."""
    drafts = []
    for node in nodes:
        settings: dict[SettingPath, object] = {("connection",): "slurm", ("slurm", "job"): _job_id_value(job.id)}
        if node.address != node.name:
            settings["address",] = node.address
        mine = gpus.get(node.name, ())
        if mine:
            settings["gpus",] = len(mine) if mine == tuple(range(len(mine))) else list(mine)
        drafts.append(NodeDraft(node.name, settings))
    return Draft(
        name=f"slurm-{job.id}",
        nodes=tuple(drafts),
        header=(made_from(f"what Slurm says of job {job.id}", good="for as long as it runs"),),
        blocks={
            "rendezvous": {"master": nodes[0].name, "port": port},
            "network": {"ports": f"{port}-{port + PORTS_PER_JOB - 1}"},
        },
        comments={("rendezvous", "port"): f"free on {nodes[0].name} when it was asked"},
    )


def _job_id_value(number: str) -> object:
    known = parse_whole_number(number)
    return number if known is None else known


def first_free_port_block(job: SlurmJob, used: Collection[int]) -> int:
    """The first of PORTS_PER_JOB ports of which none is used. The search begins at a place that depends on the job's
    number, so that jobs with near numbers begin at different places."""
    blocks = len(JOB_PORTS) // PORTS_PER_JOB
    begin = int(re.sub(r"\D", "", job.id)) % blocks
    for step in range(blocks):
        port = JOB_PORTS[(begin + step) % blocks * PORTS_PER_JOB]
        if not any(number in used for number in range(port, port + PORTS_PER_JOB)):
            return port
    return JOB_PORTS[begin * PORTS_PER_JOB]  # all are used: the `port` check names the process that holds this one


def used_local_ports(sockets: str) -> set[int]:
    """The local ports in the kernel's tables of sockets: `1: 0100007F:733C 00000000:0000 0A …`."""
    return {int(port, 16) for port in re.findall(r"(?m)^[ \t]*\d+: [0-9A-F]+:([0-9A-F]{4}) ", sockets)}


def _gpu_numbers_in_job(job: SlurmJob) -> Mapping[str, tuple[int, ...]]:
    """The GPUs of each node by the numbers that a program of the job knows them by.

    If Slurm hides all other GPUs (ConstrainDevices), the driver counts those of the job from 0.
    """
    if not any(job.gpus.values()):
        return {}
    hidden = re.search(r"(?m)^ConstrainDevices\s*=\s*yes", run_slurm_program("scontrol", "show", "config"))
    return {name: tuple(range(len(gpus))) for name, gpus in job.gpus.items()} if hidden else job.gpus
