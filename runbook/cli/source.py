"""What `-i` names: an inventory file, the nodes of a Slurm job, or the pods that a label selector selects."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from runbook.load.document import Document, parse_document
from runbook.load.shipped import find_inventory
from runbook.load.write import Draft, written
from runbook.model.errors import FilesWrong, Problem, Unreachable
from runbook.report.output import stderr

ALLOCATION = re.compile(r"slurm(?::(?P<job>.*))?", re.DOTALL)
PODS = re.compile(r"kubernetes(?::(?:(?P<namespace>[^:=!]*):)?(?P<selector>.*))?", re.DOTALL)
_JOB = re.compile(r"[1-9][0-9]*(_[0-9]+|[+][0-9]+)?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_SELECTOR = re.compile(r"[A-Za-z0-9_.\-/=!,() ]+")

MISNAMED = (
    "slurm-no-allocation",
    "slurm-job-unknown",
    "slurm-job-ended",
    "kubernetes-pod-unknown",
    "kubernetes-config-wrong",
)
"""Of these it was the argument that was wrong; of others it is not known."""


def inventory_source(named: str) -> Path | Document:
    """For the loader. Raises FilesWrong for what does not exist, Unreachable where the cluster could not be asked."""
    return parse_document(asked(named), named) if is_asked(named) else find_inventory(named)


def is_asked(named: str) -> bool:
    """Whether a cluster is asked for this inventory, and no file read."""
    return (ALLOCATION.fullmatch(named) or PODS.fullmatch(named)) is not None


def asked(named: str, name: str | None = None) -> str:
    """The text of the inventory that `slurm[:JOBID]` or `kubernetes:[NAMESPACE:]SELECTOR` stands for."""
    try:
        draft, notes = _pods(named) if PODS.fullmatch(named) else _allocated(named)
    except Unreachable as error:
        if error.cause not in MISNAMED:
            raise
        raise FilesWrong([Problem(error.cause, error.says, None, error.remedy)]) from error
    for note in notes:
        stderr.line(f"note: {note}")
    return written(replace(draft, name=name) if name else draft)


def _allocated(named: str) -> tuple[Draft, list[str]]:
    from runbook.importers.slurm_job import allocation

    match = ALLOCATION.fullmatch(named)
    number = match["job"] if match else None
    if number is not None and not _JOB.fullmatch(number):
        message = f"`{named}` names no Slurm job: its id is a number"
        raise FilesWrong([Problem("slurm-job-unknown", message, None, "`squeue --me` lists your jobs: -i slurm:JOBID")])
    return allocation(number)


def _pods(named: str) -> tuple[Draft, list[str]]:
    from runbook.importers.pods import pods_of

    match = PODS.fullmatch(named)
    namespace, selector = (match["namespace"], match["selector"]) if match else (None, None)
    if selector is None or not _SELECTOR.fullmatch(selector.strip()):
        message = f"`{named}` does not say which pods: it is `kubernetes:` and a label selector"
    elif namespace is not None and not _NAMESPACE.fullmatch(namespace):
        message = f"`{named}` names no namespace: `{namespace}` cannot be one"
    else:
        return pods_of(selector.strip(), namespace)
    help = "`kubectl get pods --show-labels` lists them: -i kubernetes:app=llama, or -i kubernetes:NAMESPACE:app=llama"
    raise FilesWrong([Problem("kubernetes-pod-unknown", message, None, help)])
