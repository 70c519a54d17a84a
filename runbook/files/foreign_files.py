"""Programs, manifests of Kubernetes and encrypted files in the place of an inventory or a playbook: what they are, and
what to do instead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from runbook.files.yaml_document import Document
from runbook.model.command_quoting import word

BATCH_SCRIPT, SHELL_SCRIPT = "a batch script of Slurm", "a shell script"
PYTHON, WINDOWS_SCRIPT = "a Python program", "a script for Windows"

_SUFFIXES = {
    **dict.fromkeys((".sh", ".bash", ".zsh"), SHELL_SCRIPT),
    **dict.fromkeys((".sbatch", ".slurm"), BATCH_SCRIPT),
    **dict.fromkeys((".bat", ".cmd", ".ps1"), WINDOWS_SCRIPT),
    ".py": PYTHON,
}
_KEY = re.compile(r"[\w.-]+")
_INTERPRETER = re.compile(r"(?:(python)[0-9.]*|(?:ba|da|z|k)?sh)")
_SBATCH = re.compile(r"^#SBATCH[ \t]+-", re.MULTILINE)


_VAULT = "`ansible-vault view` shows what is in it; secrets come from the environment here, `{env: NAME}`"


class Foreign(NamedTuple):
    what: str
    help: str


def foreign_file(document: Document) -> Foreign | None:
    """A program, by its name or by how it begins, where YAML finds no keys in it; or a manifest."""
    if not document.text:
        return None
    if document.text.startswith("$ANSIBLE_VAULT"):
        return Foreign("a file that Ansible Vault has encrypted", _VAULT)
    ours = isinstance(document.data, Mapping) and any(map(_KEY.fullmatch, document.data))
    program = None if ours else _program(document)
    return _manifest(document) if program is None else Foreign(program, _start(program, document.path))


def _program(document: Document) -> str | None:
    if _SBATCH.search(document.text):
        return BATCH_SCRIPT
    first, *words = document.lines[0].split()[:2] or [""]
    named = words[0] if words and first.endswith(("/env", "#!")) else first.removeprefix("#!")
    found = _INTERPRETER.fullmatch(PurePath(named).name) if first.startswith("#!") else None
    if found is not None:
        return PYTHON if found[1] else SHELL_SCRIPT
    return _SUFFIXES.get(PurePath(document.path).suffix.lower())


def _start(program: str, path: str) -> str:
    """How runbook comes to the same end."""
    file = word(PurePath(path).name)
    return {
        BATCH_SCRIPT: f"`runbook inventory import {word(path)}` reads its nodes and its launch; in its job, "
        "`runbook run PLAYBOOK -i slurm` takes the nodes of that",
        SHELL_SCRIPT: f"a stage starts it once on each node: `shell: sh {file}`; of a launcher in it, "
        f"`runbook inventory import {word(path)}` makes a launch",
        PYTHON: f"a stage starts it as every rank: `launch: {{command: [{file}]}}`",
        WINDOWS_SCRIPT: "such scripts are written by `runbook render PLAYBOOK -i INVENTORY`",
    }[program]


# A file may hold several manifests, and then it is read as text.

_VERSION = re.compile(r"^apiVersion:[ \t]*\S+[ \t]*\r?$", re.MULTILINE)
_KIND = re.compile(r"^kind:[ \t]*([A-Z][A-Za-z]*)[ \t]*\r?$", re.MULTILINE)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_LABELS = {
    **dict.fromkeys(("PyTorchJob", "MPIJob", "JAXJob", "TFJob", "PaddleJob"), "training.kubeflow.org/job-name"),
    **dict.fromkeys(("JobSet", "TrainJob"), "jobset.sigs.k8s.io/jobset-name"),
    "Job": "job-name",
}
"""The label whose value is the job's name on each of its pods."""


def _manifest(document: Document) -> Foreign | None:
    data = document.data
    if isinstance(data, Mapping):
        kind = data.get("kind") if isinstance(data.get("apiVersion"), str) else None
        about = data.get("metadata")
    else:
        found = _KIND.search(document.text) if data is None and _VERSION.search(document.text) else None
        kind, about = found and found[1], None
    if not isinstance(kind, str):
        return None
    pods = _pods(kind, about if isinstance(about, Mapping) else {})
    return Foreign(f"a manifest of Kubernetes ({kind})", f"its pods, once they run, are nodes: `-i {pods}`")


def _pods(kind: str, about: Mapping[str, object]) -> str:
    """How they are named after `-i`, as far as the manifest says that."""
    label, name, namespace = _LABELS.get(kind), str(about.get("name")), str(about.get("namespace", ""))
    where = f"{namespace}:" if _NAME.fullmatch(namespace) else ""
    return f"kubernetes:{where}{label}={name}" if label and _NAME.fullmatch(name) else f"kubernetes:{where}LABEL=VALUE"
