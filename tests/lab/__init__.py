"""The lab: real hosts on one Linux machine, made of namespaces, for tests and for the benchmark."""

from __future__ import annotations

from .cli import CliResult, CliTimeoutError, runbook_cli, runbook_finish, runbook_start
from .fabric import Fabric
from .host import Host
from .lab import Lab, left_behind
from .needs import containers_missing, lab_missing, missing_packages, slurm_missing
from .processes import LabError

__all__ = [
    "CliResult",
    "CliTimeoutError",
    "Fabric",
    "Host",
    "Lab",
    "LabError",
    "containers_missing",
    "lab_missing",
    "left_behind",
    "missing_packages",
    "runbook_cli",
    "runbook_finish",
    "runbook_start",
    "slurm_missing",
]
