"""Holds an inventory of another program in our words: hosts with our keys, and remarks on what has no place in ours."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from runbook.files.inventory_draft import SettingsByPath
from runbook.files.node_sets import MAX_NAMES, expand
from runbook.files.problems import NumberedLines
from runbook.model.errors import Span
from runbook.model.secrets import contains_secret, name_hints_at_secret

HOSTFILE_FORMAT, ANSIBLE_FORMAT, HOST_LIST_FORMAT, BATCH_SCRIPT_FORMAT = (
    "hostfile",
    "Ansible inventory",
    "host list",
    "batch script",
)
"""The name of each kind, for messages."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One thing that was not carried over, and the line where it stands. Never holds a secret."""

    says: str
    line: int


@dataclass(frozen=True, slots=True)
class ForeignHost:
    """One machine, where it was first named, and its settings in our keys."""

    name: str
    span: Span
    settings: SettingsByPath


@dataclass(frozen=True, slots=True)
class ForeignInventory:
    """The inventory of one file. Hosts stand in the order in which they were first named, which is that of their
    ranks."""

    kind: str
    source: str
    hosts: tuple[ForeignHost, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    group_settings: Mapping[str, SettingsByPath] = field(default_factory=dict)
    remarks: tuple[Remark, ...] = ()
    blocks: Mapping[str, Mapping[str, object]] = field(default_factory=dict)  # rendezvous, env, launch


LOGIN_NAME = re.compile(r"[^-\s]\S*")
"""A login name as our schema wants it."""


MAX_LINE_CHARACTERS = 8 * 1024
"""Characters of a line that is read as words; shlex takes time with the square of the length."""


def check_host_count(hosts: Collection[str], lines: NumberedLines, number: int, word: str) -> None:
    """Raises FilesWrong if a word brought more hosts than one inventory may hold."""
    if len(hosts) > MAX_NAMES:
        raise lines.wrong(number, word, "too-many-nodes", f"there are more than {MAX_NAMES:,} hosts")


def expand_names(word: str, lines: NumberedLines, number: int) -> list[str]:
    """The names that a word on a line stands for, its ranges expanded. Raises FilesWrong."""
    try:
        return expand(word)
    except ValueError as error:
        raise lines.wrong(number, word, "range", str(error)) from None


_SECRET_TEXT = re.compile(r"^\$ANSIBLE_VAULT;|sshpass", re.MULTILINE)


def may_contain_secret(name: str, value: object) -> bool:
    """Whether a value must not be copied: by what it is called, or by what it looks like."""
    if isinstance(value, Mapping):
        return any(may_contain_secret(str(key), inner) for key, inner in value.items())
    if isinstance(value, list):
        return any(may_contain_secret(name, inner) for inner in value)
    if name_hints_at_secret(name):
        return True
    return isinstance(value, str) and (_SECRET_TEXT.search(value) is not None or contains_secret(value))
