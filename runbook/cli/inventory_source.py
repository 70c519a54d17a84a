"""Finds the inventory that is meant: `-i` names a file, a Slurm job for its nodes, or a label selector for its pods."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.files.environment_values import AnyVariable
from runbook.files.extra_vars import parse_extra_vars
from runbook.files.inventory import load_inventory
from runbook.files.shipped_files import YAML_SUFFIXES, find_inventory
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import Document, parse_document, read_document
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Inventory
from runbook.model.safe_files import is_file
from runbook.report.standard_streams import stderr

if TYPE_CHECKING:
    from runbook.files.inventory_draft import Draft


_MAX_SUGGESTION_FILES = 20  # files that are read to suggest one


def load_named_inventory(arguments: argparse.Namespace) -> tuple[Inventory, Origins]:
    """The inventory that is meant. Variables of `{env: NAME}` need not be set: their values are not shown."""
    path = inventory_source(arguments.inventory) if arguments.inventory is not None else find_only_inventory()
    return load_inventory(path, extra_vars=parse_extra_vars(arguments.extra_vars), environ=AnyVariable.here())


def find_only_inventory() -> Path:
    """`inventory.yml` here, or the one file in `inventories/`. Raises FilesWrong if there is none, or several."""
    from runbook.lint.find_files import outside_target

    here = [Path(f"inventory{suffix}") for suffix in YAML_SUFFIXES if is_file(f"inventory{suffix}")]
    folder = Path("inventories")
    there = sorted(file for file in folder.glob("*") if file.suffix in YAML_SUFFIXES and is_file(file))
    outside = {file: real for file in here + there if (real := outside_target(file, [str(Path.cwd().resolve())]))}
    candidates = [file for file in here + there if file not in outside]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        message = f"which inventory? There are {len(candidates)}: {', '.join(map(str, candidates[:6]))}"
        raise FilesWrong.of("arguments.which-inventory", message, help=f"name one: -i {candidates[0]}")
    for file, real in outside.items():
        message = f"{file} is a link that leads out of this folder, to {real}: it is used only where it is named"
        raise FilesWrong.of("arguments.no-inventory", message, help=f"name it: -i {file}")
    message = "there is no inventory.yml here, and no inventories/ with one in it"
    raise FilesWrong.of("arguments.no-inventory", message, help=inventory_naming_help())


def inventory_naming_help() -> str:
    """The help where no inventory is named: the inventories here under other names, or else how to make one."""
    from runbook.files.file_kinds import own_file_kind

    files = (file for file in sorted(Path().glob("*")) if file.suffix in YAML_SUFFIXES and is_file(file))
    there = [
        file
        for file in islice(files, _MAX_SUGGESTION_FILES)
        if own_file_kind(read_document(file), named=False) == "inventory"
    ]
    if len(there) == 1:
        return f"name it: -i {shell_word(str(there[0]))}"
    if there:
        return f"name one: {', '.join(f'-i {shell_word(str(file))}' for file in there[:6])}"
    return "name one: -i FILE; or make one: runbook inventory init HOST…, runbook inventory import FILE"


SLURM_SOURCE = re.compile(r"slurm(?::(?P<job>.*))?", re.DOTALL)
KUBERNETES_SOURCE = re.compile(r"kubernetes(?::(?:(?P<namespace>[^:=!]*):)?(?P<selector>.*))?", re.DOTALL)
_SLURM_JOB_ID = re.compile(r"[1-9][0-9]*(_[0-9]+|[+][0-9]+)?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_SELECTOR = re.compile(r"[A-Za-z0-9_.\-/=!,() ]+")

WRONG_SOURCE_CAUSES = (
    "slurm-no-allocation",
    "slurm-job-unknown",
    "slurm-job-ended",
    "kubernetes-pod-unknown",
    "kubernetes-config-wrong",
)
"""Causes that mean that the argument of `-i` was wrong; for other causes that is not known."""


def inventory_source(named: str) -> Path | Document:
    """The inventory that `-i` names, for the loader: a path or a document. Raises FilesWrong if it does not exist,
    Unreachable if the cluster could not be asked."""
    return parse_document(cluster_inventory_text(named), named) if is_cluster_source(named) else find_inventory(named)


def is_cluster_source(named: str) -> bool:
    """Whether `-i` names a Slurm job or pods, so that a cluster is asked and no file is read."""
    return (SLURM_SOURCE.fullmatch(named) or KUBERNETES_SOURCE.fullmatch(named)) is not None


def cluster_inventory_text(named: str, name: str | None = None) -> str:
    """The text of the inventory that `slurm[:JOBID]` or `kubernetes:[NAMESPACE:]SELECTOR` stands for."""
    from runbook.files.inventory_draft import draft_text

    try:
        draft, notes = _pods_draft(named) if KUBERNETES_SOURCE.fullmatch(named) else _slurm_draft(named)
    except Unreachable as error:
        if error.cause not in WRONG_SOURCE_CAUSES:
            raise
        raise FilesWrong.of(error.cause, error.says, help=error.remedy) from error
    for note in notes:
        stderr.line(f"note: {note}")
    return draft_text(replace(draft, name=name) if name else draft)


def _slurm_draft(named: str) -> tuple[Draft, list[str]]:
    from runbook.importers.slurm_job import draft_of_allocation

    match = SLURM_SOURCE.fullmatch(named)
    number = match["job"] if match else None
    if number is not None and not _SLURM_JOB_ID.fullmatch(number):
        message = f"`{named}` names no Slurm job: its id is a number"
        raise FilesWrong.of("slurm-job-unknown", message, help="`squeue --me` lists your jobs: -i slurm:JOBID")
    return draft_of_allocation(number)


def _pods_draft(named: str) -> tuple[Draft, list[str]]:
    from runbook.importers.pods import draft_of_selected_pods

    match = KUBERNETES_SOURCE.fullmatch(named)
    namespace, selector = (match["namespace"], match["selector"]) if match else (None, None)
    if selector is None or not _LABEL_SELECTOR.fullmatch(selector.strip()):
        message = f"`{named}` does not say which pods: it is `kubernetes:` and a label selector"
    elif namespace is not None and not _NAMESPACE.fullmatch(namespace):
        message = f"`{named}` names no namespace: `{namespace}` cannot be one"
    else:
        return draft_of_selected_pods(selector.strip(), namespace)
    help = "`kubectl get pods --show-labels` lists them: -i kubernetes:app=llama, or -i kubernetes:NAMESPACE:app=llama"
    raise FilesWrong.of("kubernetes-pod-unknown", message, help=help)
