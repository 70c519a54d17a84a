"""Which kind of inventory a text is, or why that cannot be told."""

from __future__ import annotations

import re
from collections.abc import Mapping

from runbook.load.document import parse_document
from runbook.load.foreign.found import ForeignInventory, NumberedLines
from runbook.load.shape import ANSIBLE_PLAYBOOK, ANSIBLE_TASKS, PLAYBOOK, shape_of
from runbook.model.commands import word
from runbook.model.errors import FilesWrong, Problem

KINDS = ("hostfile", "ansible", "slurm")

_SECTION = re.compile(r"\[[^\[\]\s]+\]\s*(#.*)?")
_SLOTS = re.compile(r"\A\S+(\s+(slots|count|cpu|max[_-]slots|slots[_-]max|user|username|ifname)\s*=\s*\S+)+")
_COUNTED = re.compile(r"\A[^\s:=]+:(?P<slots>[0-9]{1,5})")
_HOST = re.compile(r"[A-Za-z0-9_.,@\[\]:-]+")
_SHAPES = (_SLOTS, _COUNTED, _HOST)
_ANSIBLE_RANGE = re.compile(r"\[[A-Za-z0-9]*:[A-Za-z0-9]+(:[0-9]+)?\]")
_YAML_KEY = re.compile(r"""(---|(- +)?["']?[\w.-]+["']?:)(\s.*)?""")
_MOST_SLOTS = 256  # `host:8` has slots; `host:2222` may well have a port


def read_foreign(text: str, file: str, kind: str | None = None) -> ForeignInventory:
    """Read it as `kind`, or as what it looks like. Raises FilesWrong."""
    from runbook.load.foreign.ansible import read_ansible
    from runbook.load.foreign.hostfile import read_hostfile
    from runbook.load.foreign.slurm import read_host_list

    _refuse(text, file)
    kind = kind or _kind(text, file)
    if kind == "hostfile":
        return read_hostfile(text, file)
    if kind == "slurm":
        return read_host_list(text, file)
    return read_ansible(text, file, yaml=_is_yaml(text, file))


def kind_of_text(text: str, file: str) -> str | None:
    """One of KINDS; None for a text that is none of them, that would have to be run, or of which it cannot be told."""
    try:
        _refuse(text, file)
        return _kind(text, file)
    except FilesWrong:
        return None


def _refuse(text: str, file: str) -> None:
    """What would have to be run, decrypted or not imported at all."""
    if text.startswith("#!"):
        message = "this is a program, and an import runs nothing"
        help = f"run it yourself: ansible-inventory -i {word(file)} --list --yaml | runbook inventory import -"
        raise NumberedLines(text, file).wrong(1, "", "program", message, help)
    if text.startswith("$ANSIBLE_VAULT"):
        help = f"ansible-vault view {file} | runbook inventory import -"
        raise NumberedLines(text, file).wrong(1, "", "vault", "this file is encrypted with Ansible Vault", help)
    if not _content(text):
        raise FilesWrong([Problem("import.empty", f"{file} holds no host")])


def _content(text: str) -> list[tuple[int, str]]:
    """The lines that say something, numbered, without what stands behind a `#`."""
    numbered = ((number, line.partition(" #")[0].strip()) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in numbered if line and line[0] not in "#;"]


def _is_yaml(text: str, file: str) -> bool:
    first = _content(text)[0][1]
    return first.startswith("{") or file.endswith((".yml", ".yaml", ".json")) or _YAML_KEY.fullmatch(first) is not None


def _kind(text: str, file: str) -> str:
    lines = _content(text)
    if any(_SECTION.fullmatch(line) for _, line in lines):
        return "ansible"
    if _is_yaml(text, file):
        return _yaml_kind(text, file)
    if any(" ansible_" in line for _, line in lines):
        return "ansible"
    odd = next((found for found in lines if not any(shape.fullmatch(found[1]) for shape in _SHAPES)), None)
    if odd is None:
        return _kind_of_hosts(text, file, lines)
    if all(_HOST.fullmatch(word) for word in odd[1].split()):
        return "slurm"
    message = "this line is none of a hostfile's, of an Ansible inventory's or of a host list's"
    raise _cannot_tell(text, file, odd[0], message)


def _yaml_kind(text: str, file: str) -> str:
    document = parse_document(text, file)
    shape = shape_of(document.data)
    if shape == PLAYBOOK:
        message, help = "this is a playbook of runbook, and no inventory", f"run it: runbook run {file} -i INVENTORY"
        raise FilesWrong([Problem("import.ours", message, document.key_span("stages"), help)])
    if shape in (ANSIBLE_PLAYBOOK, ANSIBLE_TASKS):
        message = f"this is {shape}, and no inventory: it does not say where the hosts are"
        help = "name the inventory that ansible-playbook -i is given"
        raise FilesWrong([Problem("import.playbook", message, document.span(), help)])
    if isinstance(document.data, Mapping) and "nodes" in document.data:
        message = "this is an inventory of runbook already"
        raise FilesWrong(
            [Problem("import.ours", message, document.key_span("nodes"), f"use it: runbook run … -i {file}")]
        )
    return "ansible"


def _kind_of_hosts(text: str, file: str, lines: list[tuple[int, str]]) -> str:
    """Lines of hosts: with slots, with a number behind a colon, or bare."""
    if any(_SLOTS.fullmatch(line) for _, line in lines):
        return "hostfile"
    if any(_ANSIBLE_RANGE.search(line) for _, line in lines):
        return "ansible"
    counts = [(number, int(match["slots"])) for number, line in lines if (match := _COUNTED.fullmatch(line))]
    port = next((number for number, count in counts if count > _MOST_SLOTS), None)
    if port is not None:
        raise _cannot_tell(text, file, port, "the number may be slots (a hostfile) or a port (Ansible)")
    names = [line for _, line in lines]
    return "hostfile" if counts or len(set(names)) < len(names) or any("@" in name for name in names) else "slurm"


def _cannot_tell(text: str, file: str, number: int, message: str) -> FilesWrong:
    return NumberedLines(text, file).wrong(
        number, "", "unknown-kind", message, "say what it is: --from hostfile, ansible or slurm"
    )
