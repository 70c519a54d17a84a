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
    wrong_kind,
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
    told = wrong_kind(document, None)
    assert told is not None
    assert told.id == "file.kind"
    if OTHERS[text] == ANSIBLE_INVENTORY:
        assert "runbook inventory import x.yml --out x.runbook.yml" in (told.help or "")


@pytest.mark.parametrize("text", OURS)
def test_the_other_one_of_our_two_kinds(text: str) -> None:
    document = parse_document(text, "x.yml")
    assert wrong_kind(document, None) is None
    wanted, other = ("inventory", "playbook") if OURS[text] == INVENTORY else ("playbook", "inventory")
    assert wrong_kind(document, wanted) is None  # type: ignore[arg-type]
    problem = wrong_kind(document, other)  # type: ignore[arg-type]
    assert problem is not None
    assert problem.message.startswith(f"this is {OURS[text]} of runbook")


@pytest.mark.parametrize("text", MISSPELT)
def test_of_a_misspelt_file_of_ours_its_mistakes_are_told(text: str) -> None:
    document = parse_document(text, "x.yml")
    assert wrong_kind(document, "playbook") is None
    assert wrong_kind(document, None) is None


@pytest.mark.parametrize(("text", "what"), [("a slots=8\nb slots=8\n", HOSTFILE), ("gn[01-04]\n", HOST_LIST)])
def test_lists_of_hosts_are_for_import(text: str, what: str) -> None:
    problem = wrong_kind(parse_document(dedent(text), "hosts"), "inventory")
    assert problem is not None
    assert problem.message.startswith(f"this is {what}")
    assert "runbook inventory import hosts" in (problem.help or "")
