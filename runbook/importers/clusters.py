"""Inventories as a cluster tells them: the nodes of a Slurm job (addresses, GPUs, and a port that is free), and the
pods that a label selector selects (addresses and GPUs)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence

import runbook
from runbook.files.inventory import natural
from runbook.files.inventory_draft import Draft, NodeDraft, Setting
from runbook.model.errors import Unreachable
from runbook.model.inventory import Kubernetes
from runbook.model.units import whole_number
from runbook.transport.kubernetes import current_context, selected
from runbook.transport.kubernetes_pods import Pod, ill, unknown
from runbook.transport.slurm import SlurmJob, SlurmNode, ask, ended, job_of, no_allocation, nodes_of, on_node, unhealthy

PORTS = range(20_000, 31_990)
"""Below what kernels give out by themselves, above what services ask for."""

WIDTH = 11
"""The rendezvous port, and ten more between the nodes."""

SOCKETS = "cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6 2>/dev/null; exit 0"


def allocation(number: str | None) -> tuple[Draft, list[str]]:
    """The inventory of this job, or of the one that runbook is started in, and what else should be said of it.

    Raises Unreachable where there is no such job, where it has no nodes, or where Slurm could not be asked.
    """
    number = number or os.environ.get("SLURM_JOB_ID")
    if not number:
        raise no_allocation()
    job = job_of(number)
    if over := ended(job, None):
        raise over
    nodes = nodes_of(job.nodes)
    chosen = [nodes.get(name, SlurmNode(name, name, (), silent=False, reason="")) for name in job.nodes]
    notes = [ill.says for node in chosen if (ill := unhealthy(node))]
    try:
        port = free_port(job, taken(on_node(job.id, job.nodes[0], "/bin/sh", "-c", SOCKETS)))
    except Unreachable as error:
        if error.cause == "slurm-job-unknown":
            raise  # the job is another user's
        port = free_port(job, ())
        notes.append(f"whether port {port} is free on {job.nodes[0]} could not be asked: {error.says}")
    return draft_of_job(job, chosen, _own_numbers(job), port), notes


def draft_of_job(job: SlurmJob, nodes: list[SlurmNode], gpus: Mapping[str, tuple[int, ...]], port: int) -> Draft:
    """Pure: what is known of a job as an inventory."""
    drafts = []
    for node in nodes:
        settings: dict[Setting, object] = {("connection",): "slurm", ("slurm", "job"): _id(job.id)}
        if node.address != node.name:
            settings["address",] = node.address
        mine = gpus.get(node.name, ())
        if mine:
            settings["gpus",] = len(mine) if mine == tuple(range(len(mine))) else list(mine)
        drafts.append(NodeDraft(node.name, settings))
    return Draft(
        name=f"slurm-{job.id}",
        nodes=tuple(drafts),
        header=(
            (
                f"Made by runbook ({runbook.__version__}) from what Slurm says of job {job.id}; "
                "good for as long as it runs."
            ),
        ),
        blocks={
            "rendezvous": {"master": nodes[0].name, "port": port},
            "network": {"ports": f"{port}-{port + WIDTH - 1}"},
        },
        comments={("rendezvous", "port"): f"free on {nodes[0].name} when it was asked"},
    )


def _id(number: str) -> object:
    known = whole_number(number)
    return number if known is None else known


def free_port(job: SlurmJob, used: Collection[int]) -> int:
    """The first of WIDTH ports of which none is taken, beginning where no job with a number near this one's begins."""
    blocks = len(PORTS) // WIDTH
    begin = int(re.sub(r"\D", "", job.id)) % blocks
    for step in range(blocks):
        port = PORTS[(begin + step) % blocks * WIDTH]
        if not any(number in used for number in range(port, port + WIDTH)):
            return port
    return PORTS[begin * WIDTH]  # the `port` stage names who holds it


def taken(sockets: str) -> set[int]:
    """Local ports in the kernel's tables: `1: 0100007F:733C 00000000:0000 0A …`."""
    return {int(port, 16) for port in re.findall(r"(?m)^[ \t]*\d+: [0-9A-F]+:([0-9A-F]{4}) ", sockets)}


def _own_numbers(job: SlurmJob) -> Mapping[str, tuple[int, ...]]:
    """The GPUs of each node by the numbers that a program of the job knows them by.

    When Slurm hides the others (ConstrainDevices), the driver counts the remaining ones from 0.
    """
    if not any(job.gpus.values()):
        return {}
    hidden = re.search(r"(?m)^ConstrainDevices\s*=\s*yes", ask("scontrol", "show", "config"))
    return {name: tuple(range(len(gpus))) for name, gpus in job.gpus.items()} if hidden else job.gpus


ENDED = ("Succeeded", "Failed")

OF_THE_MASTER = (("training.kubeflow.org/job-role", "master"), ("training.kubeflow.org/replica-type", "master"))
"""Labels by which Kubeflow's training operator marks the pod that the others dial."""


def pods_of(selector: str, namespace: str | None) -> tuple[Draft, list[str]]:
    """The inventory of these pods, and what else should be said of them. Ended pods are left out, with a note.

    Raises Unreachable where no such pod is alive, or where the API server could not be asked.
    """
    asked = Kubernetes(namespace=namespace)
    pods = selected(asked, selector)
    if not pods:
        raise unknown(asked, f"no pod with the labels {selector}")
    alive = sorted((pod for pod in pods if pod.phase not in ENDED), key=_rank)
    by_name = {pod.name: reason for pod in pods if (reason := ill(pod, _where(pod), f"the pod {pod.name}"))}
    if not alive:
        raise next(iter(by_name.values()))
    notes = [f"{by_name[pod.name].says}; it is left out" for pod in pods if pod.phase in ENDED]
    notes += [by_name[pod.name].says for pod in alive if pod.name in by_name]
    several = next((pod for pod in alive if len(pod.containers) > 1), None)
    if several:
        notes.append(
            f"{several.name} has the containers {', '.join(several.containers)}: "
            f"the job is to run in {several.container}"
        )
    return draft_of_pods(alive, selector, current_context(asked)), notes


def draft_of_pods(pods: Sequence[Pod], selector: str, context: str | None) -> Draft:
    """Pure: what is known of pods as an inventory; the first one is the master."""
    drafts = []
    for pod in pods:
        settings: dict[Setting, object] = {("connection",): "kubernetes", ("kubernetes", "namespace"): pod.namespace}
        if context:
            settings["kubernetes", "context"] = context
        if len(pod.containers) > 1:
            settings["kubernetes", "container"] = pod.container
        if pod.address:
            settings["address",] = pod.address
        if pod.gpus:
            settings["gpus",] = pod.gpus
        drafts.append(NodeDraft(pod.name, settings))
    return Draft(
        name=f"pods-{pods[0].namespace}",
        nodes=tuple(drafts),
        header=(
            (
                f"Made by runbook ({runbook.__version__}) from the pods with the labels {selector}; "
                "good until one of them is replaced."
            ),
        ),
    )


def _rank(pod: Pod) -> tuple[object, ...]:
    """The master first, where the labels tell; then by name, with numbers as numbers."""
    master = any(pod.labels.get(label) == value for label, value in OF_THE_MASTER)
    return (not master, natural(pod.name))


def _where(pod: Pod) -> Kubernetes:
    return Kubernetes(namespace=pod.namespace)
