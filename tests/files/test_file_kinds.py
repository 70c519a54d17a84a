"""Files that are of another kind than a command wants: one sentence about that, and nothing about their keys."""

from __future__ import annotations

from textwrap import dedent

import pytest

from runbook.files.file_kinds import (
    ANSIBLE_INVENTORY,
    ANSIBLE_PLAYBOOK,
    ANSIBLE_TASKS,
    HOST_LIST,
    HOSTFILE,
    INVENTORY,
    PLAYBOOK,
    wrong_kind_problem,
)
from runbook.files.inventory import examine_inventory
from runbook.files.playbook import examine_playbook
from runbook.files.yaml_document import parse_document

HEAD = "# A paragraph.\n#  of two lines\n\n; another\n   \n\n" * 200
"""What a careful person writes above a file: its length must not matter."""
OTHERS = {
    "all: {hosts: {a: {ansible_host: 10.0.0.1}}}": ANSIBLE_INVENTORY,
    "gpu:\n  hosts:\n    a:\n    b:\n  vars: {x: 1}\ncpu:\n  children:\n    gpu:\n": ANSIBLE_INVENTORY,
    '{"_meta": {"hostvars": {}}, "gpu": {"hosts": ["a"]}}': ANSIBLE_INVENTORY,
    "# ours\n\n[gpu]\nnode-a ansible_host=10.0.0.1\n": ANSIBLE_INVENTORY,
    "node-a ansible_host=10.0.0.1\n": ANSIBLE_INVENTORY,
    f"{HEAD}[gpu]  # ours\nnode-a\n": ANSIBLE_INVENTORY,
    f"{HEAD}node-a ansible_host=10.0.0.1\n": ANSIBLE_INVENTORY,
    f"{HEAD.replace(';', '#')}- hosts: all\n": ANSIBLE_PLAYBOOK,
    "- hosts: all\n  tasks:\n  - shell: echo\n": ANSIBLE_PLAYBOOK,
    "- import_playbook: other.yml\n": ANSIBLE_PLAYBOOK,
    "hosts: all\ntasks: []\n": ANSIBLE_PLAYBOOK,
    "tasks:\n- shell: echo\n": ANSIBLE_PLAYBOOK,
    "- name: x\n  ansible.builtin.shell: echo\n": ANSIBLE_TASKS,
    "- shell: echo\n  register: out\n": ANSIBLE_TASKS,
}
FOREIGN = {
    ("train.py", "import torch\nprint('a: b')\n"): ("a Python program", "launch: {command: [train.py]}"),
    ("train", "#!/usr/bin/env python3\nimport torch\n"): ("a Python program", "launch: {command: [train]}"),
    ("run.sh", "set -e\npython train.py\n"): ("a shell script", "shell: sh run.sh"),
    ("run", "#!/bin/bash -l\necho 'a: b\n"): ("a shell script", "shell: sh run"),
    ("job", "#!/bin/sh\n#SBATCH --nodes=2\ntorchrun train.py\n"): ("a batch script of Slurm", "-i slurm"),
    ("a/launch.BAT", "@echo off\r\nset A=1\r\n"): ("a script for Windows", "runbook render"),
    ("job.yml", "apiVersion: v1\nkind: MPIJob\nmetadata: {name: llama, namespace: train}\n"): (
        "a manifest of Kubernetes (MPIJob)",
        "`-i kubernetes:train:training.kubeflow.org/job-name=llama`",
    ),
    ("pod.yml", "apiVersion: v1\nkind: Pod\nmetadata: {name: llama}\n"): (
        "a manifest of Kubernetes (Pod)",
        "`-i kubernetes:LABEL=VALUE`",
    ),
    ("two.yml", "apiVersion: v1\nkind: Service\n---\napiVersion: batch/v1\nkind: Job\n"): (
        "a manifest of Kubernetes (Service)",
        "-i kubernetes:",
    ),
    ("helm.yml", "apiVersion: batch/v1\nkind: Job\nmetadata: {name: '{{ .Release.Name }}'}\n"): (
        "a manifest of Kubernetes (Job)",
        "`-i kubernetes:LABEL=VALUE`",
    ),
}
"""Names and texts of programs and manifests; what they are called, and what is said to do."""
OURS = {
    f"{HEAD.replace(';', '#')}nodes: {{a: {{}}}}": INVENTORY,
    "nodes: {a: {}}": INVENTORY,
    "stages: [{check: ping}]": PLAYBOOK,
    "nodes: all\nstages: []": PLAYBOOK,
}
MISSPELT = [
    "nodes: {a: {}}\nstages: []",
    "hosts: {a: {ip: 10.0.0.1}}",
    "node: {a: {}}",
    "- check: ping",
    "[1, 2]",
    "text",
    "all: {}",
    "{}",
]


@pytest.mark.parametrize("text", OTHERS)
def test_what_is_ansibles_is_named_and_nothing_else_is_said(text: str) -> None:
    document = parse_document(text, "x.yml")
    for found in (examine_inventory(document), examine_playbook(document)):
        (problem,) = found.problems
        assert problem.message.startswith(f"this is {OTHERS[text]}, ")
        assert problem.id in ("file.kind", "yaml.not-a-mapping")
    told = wrong_kind_problem(document, None)
    assert told is not None
    assert told.id == "file.kind"
    if OTHERS[text] == ANSIBLE_INVENTORY:
        assert "runbook inventory import x.yml --out x.runbook.yml" in (told.help or "")


@pytest.mark.parametrize(("name", "text"), FOREIGN)
def test_programs_and_manifests_are_named_and_nothing_else_is_said(name: str, text: str) -> None:
    what, help = FOREIGN[name, text]
    document = parse_document(text, name)
    for (problem,) in (examine_inventory(document).problems, examine_playbook(document).problems):
        assert problem.message.startswith(f"this is {what}, and ")
    told = wrong_kind_problem(document, None)
    assert told is not None
    assert help in (told.help or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.sh", "#!/usr/bin/env runbook\nstages: [{check: ping}]\n"),
        ("x.py", ""),
        ("x.yml", "#!/bin/sh of ours\nnodes: {a: {}}\n"),
        ("x.yml", "# apiVersion: v1\nnodes: {a: {vars: {kind: Pod}}}\n"),
        ("x.yml", "kind: Pod\nnodes: {a: {}}\n"),
    ],
)
def test_what_only_looks_like_one_of_those_is_read_as_ours(name: str, text: str) -> None:
    assert wrong_kind_problem(parse_document(text, name), None) is None


@pytest.mark.parametrize("text", OURS)
def test_the_other_one_of_our_two_kinds(text: str) -> None:
    document = parse_document(text, "x.yml")
    assert wrong_kind_problem(document, None) is None
    wanted, other = ("inventory", "playbook") if OURS[text] == INVENTORY else ("playbook", "inventory")
    assert wrong_kind_problem(document, wanted) is None  # type: ignore[arg-type]
    problem = wrong_kind_problem(document, other)  # type: ignore[arg-type]
    assert problem is not None
    assert problem.message.startswith(f"this is {OURS[text]} of runbook")


@pytest.mark.parametrize("text", MISSPELT)
def test_of_a_misspelt_file_of_ours_its_mistakes_are_told(text: str) -> None:
    document = parse_document(text, "x.yml")
    assert wrong_kind_problem(document, "playbook") is None
    assert wrong_kind_problem(document, None) is None


@pytest.mark.parametrize(("text", "what"), [("a slots=8\nb slots=8\n", HOSTFILE), ("gn[01-04]\n", HOST_LIST)])
def test_lists_of_hosts_are_for_import(text: str, what: str) -> None:
    problem = wrong_kind_problem(parse_document(dedent(text), "hosts"), "inventory")
    assert problem is not None
    assert problem.message.startswith(f"this is {what}")
    assert "runbook inventory import hosts" in (problem.help or "")
