"""What `-i` names: an inventory file, or the nodes of a Slurm job."""

from __future__ import annotations

import re
from pathlib import Path

from runbook.load.document import Document, parse_document
from runbook.load.shipped import find_inventory
from runbook.load.write import written
from runbook.model.errors import FilesWrong, Problem, Unreachable
from runbook.report.output import stderr

ALLOCATION = re.compile(r"slurm(?::(?P<job>.*))?", re.DOTALL)
_JOB = re.compile(r"[1-9][0-9]*(_[0-9]+|[+][0-9]+)?")

MISNAMED = ("slurm-no-allocation", "slurm-job-unknown", "slurm-job-ended")
"""Of these it was the argument that was wrong; of others it is not known."""


def inventory_source(named: str) -> Path | Document:
    """For the loader. Raises FilesWrong for what does not exist, Unreachable where Slurm could not be asked."""
    return parse_document(allocated(named), named) if ALLOCATION.fullmatch(named) else find_inventory(named)


def allocated(named: str, name: str | None = None) -> str:
    """The text of the inventory that `slurm` or `slurm:JOBID` stands for."""
    from dataclasses import replace

    from runbook.survey.allocation import allocation

    match = ALLOCATION.fullmatch(named)
    number = match["job"] if match else None
    if number is not None and not _JOB.fullmatch(number):
        message = f"`{named}` names no Slurm job: its id is a number"
        raise FilesWrong([Problem("slurm-job-unknown", message, None, "`squeue --me` lists your jobs: -i slurm:JOBID")])
    try:
        draft, notes = allocation(number)
    except Unreachable as error:
        if error.cause not in MISNAMED:
            raise
        raise FilesWrong([Problem(error.cause, error.says, None, error.remedy)]) from error
    for note in notes:
        stderr.line(f"note: {note}")
    return written(replace(draft, name=name) if name else draft)
