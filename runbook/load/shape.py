"""What a file is when it is not what a command wants: our other kind, or Ansible's, MPI's or Slurm's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Literal

from runbook.load.document import Document
from runbook.model.errors import Problem, Span

Kind = Literal["inventory", "playbook"]

INVENTORY, PLAYBOOK = "an inventory", "a playbook"
ANSIBLE_INVENTORY, ANSIBLE_PLAYBOOK, ANSIBLE_TASKS = "an Ansible inventory", "an Ansible playbook", "Ansible tasks"
HOSTFILE, HOST_LIST = "a hostfile", "a host list"

_PLAY = {"tasks", "roles", "pre_tasks", "post_tasks", "handlers", "gather_facts", "vars_files", "import_playbook"}
_TASK = {
    *("ansible.builtin", "action", "local_action", "block", "rescue", "always", "register", "notify", "become", "args"),
    *("become_user", "delegate_to", "run_once", "changed_when", "failed_when", "ignore_errors", "loop", "no_log"),
    *("import_tasks", "include_tasks", "import_role", "include_role", "set_fact", "command", "copy", "template"),
    *("apt", "dnf", "yum", "package", "pip", "service", "systemd", "user", "file", "lineinfile", "debug", "setup"),
}
_OF_GROUP = {"hosts", "vars", "children"}
_ANSIBLE_LINE = re.compile(r"\sansible_\w+ *=|\[\w*:\w+\]")
_INI_LINE = re.compile(r"\A(?:\[[^\[\]\s,]+\][ \t]*(?:[#;].*)?$|\S.*\sansible_\w+ *=)")


def shape_of(data: object) -> str | None:
    """What parsed data is, by its keys: one of the constants above, None where they do not tell."""
    if isinstance(data, list):
        items = [item for item in data if isinstance(item, Mapping)]
        if any("hosts" in item or not _PLAY.isdisjoint(item) for item in items):
            return ANSIBLE_PLAYBOOK
        if any(str(key).partition(".")[0] == "ansible" or key in _TASK for item in items for key in item):
            return ANSIBLE_TASKS
        return None
    if not isinstance(data, Mapping):
        return None
    stages, nodes = data.get("stages"), data.get("nodes")
    if isinstance(nodes, Mapping) and "stages" not in data:
        return INVENTORY
    if isinstance(stages, list) and not isinstance(nodes, Mapping):
        return PLAYBOOK
    if stages is not None or isinstance(nodes, Mapping):
        return None
    if not _PLAY.isdisjoint(data):
        return ANSIBLE_PLAYBOOK
    return ANSIBLE_INVENTORY if _is_ansible_inventory(data) else None


def _is_ansible_inventory(data: Mapping[str, Any]) -> bool:
    """`all`, or nothing but groups, and one of them with hosts; `_meta` stands in what ansible-inventory prints."""
    groups = {name: group for name, group in data.items() if name != "_meta"}
    if not _OF_GROUP.isdisjoint(groups.get("all") or () if isinstance(groups.get("all"), Mapping) else ()):
        return True
    shaped = all(
        group is None or (isinstance(group, Mapping) and group.keys() <= _OF_GROUP) for group in groups.values()
    )
    return shaped and any(group and not {"hosts", "children"}.isdisjoint(group) for group in groups.values())


def wrong_kind(document: Document, wanted: Kind | None) -> Problem | None:
    """Told in the place of everything else about a file that is not of the wanted kind, and plainly of another one.

    `wanted` is None for lint, which takes both.
    """
    what = _shape(document, wanted)
    if what is None or what == (INVENTORY if wanted == "inventory" else PLAYBOOK):
        return None
    if wanted is None and what in (INVENTORY, PLAYBOOK):
        return None
    owner = " of runbook" if what in (INVENTORY, PLAYBOOK) else ""
    message = f"this is {what}{owner}, and {INVENTORY if wanted == 'inventory' else PLAYBOOK} is wanted"
    if wanted is None or not owner:
        message = f"this is {what}, and neither an inventory nor a playbook of runbook"
    id = "yaml.not-a-mapping" if wanted is not None and isinstance(document.data, list) else "file.kind"
    return Problem(id, message, _first_line(document), _cure(what, document.path))


def _shape(document: Document, wanted: Kind | None) -> str | None:
    if not isinstance(document.data, Mapping) and _is_ini(document):
        return ANSIBLE_INVENTORY
    if isinstance(document.data, str) and wanted != "playbook":
        return _of_lines(document)
    return shape_of(document.data)


def _is_ini(document: Document) -> bool:
    """Whether the first line that says something is one of Ansible's own format: a section, or a host with settings."""
    number = _first_line_that_says(document)
    return number is not None and _INI_LINE.match(document.lines[number - 1]) is not None


def _of_lines(document: Document) -> str | None:
    """Text that YAML reads as one long word may be a list of hosts."""
    from runbook.load.foreign.detect import kind_of_text  # it reads documents, and few files need it

    kind = kind_of_text(document.text, document.path)
    if kind == "slurm":
        return HOST_LIST if re.search("[0-9]", document.text) else None
    if kind == "ansible":
        return ANSIBLE_INVENTORY if _ANSIBLE_LINE.search(document.text) else None
    return HOSTFILE if kind == "hostfile" else None


def _first_line(document: Document) -> Span:
    span = document.span()
    if span is not None:
        return span
    number = _first_line_that_says(document) or 1
    return Span(document.path, number, 1, max(1, len(document.lines[number - 1].rstrip())))


def _first_line_that_says(document: Document) -> int | None:
    """The number of the first line that is neither blank nor a comment, from 1."""
    words = enumerate(map(str.lstrip, document.lines), 1)
    return next((number for number, line in words if line and line[0] not in "#;"), None)


def _cure(what: str, file: str) -> str:
    if what == INVENTORY:
        return f"name a playbook, and this file after -i: runbook run PLAYBOOK -i {file}"
    if what == PLAYBOOK:
        return f"an inventory has `nodes:` with a mapping; this file is for: runbook run {file} -i INVENTORY"
    if what == ANSIBLE_PLAYBOOK:
        return (
            "here a playbook is one mapping, no list: `hosts:` is `nodes:`, `tasks:` is `stages:`, and a stage is a "
            "`check:`, a `shell:` or a `launch:`"
        )
    if what == ANSIBLE_TASKS:
        return "here tasks are `stages:` at the left margin, and each is a `check:`, a `shell:` or a `launch:`"
    out = f"{PurePath(file).stem}.runbook.yml"
    return f"make an inventory of runbook from it: runbook inventory import {file} --out {out}"
