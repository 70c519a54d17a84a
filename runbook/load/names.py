"""The names in an inventory: nodes with their ranges expanded, and the members of groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runbook.load.patterns import COMPARED, Names, matching, names_looked_at
from runbook.load.placed import Complaints
from runbook.load.ranges import LARGEST, expand
from runbook.load.separators import spaced
from runbook.model.errors import FilesWrong

MOST_LOOKED_AT = 4_000_000  # names that the groups' patterns are held against: 10,000 nodes, 400 times `*`
MOST_COMPARED = 10_000  # names with one that is unknown, in all groups
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_NAME_HELP = "letters, digits, `_`, `.` and `-`, with no `.` or `-` in front; ranges are written [01-04]"


def _name_help(name: str) -> str:
    joined = spaced(name, name=True)
    return joined[1] if joined else _NAME_HELP


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The key of `nodes:` that a node came from, and that it is the `index`th of `count` in its range."""

    key: str
    index: int
    count: int


def node_entries(nodes: Mapping[str, Any], complaints: Complaints) -> dict[str, NodeKey]:
    """Every node's name in order of appearance, ranges expanded in place."""
    entries: dict[str, NodeKey] = {}
    too_many = f"there are more than {LARGEST:,} nodes"
    if len(nodes) > LARGEST:
        complaints.about_key(("nodes",), "too-many-nodes", too_many)
        return {}
    for key in nodes:
        keys = ("nodes", key)
        try:
            names = expand(key)
        except ValueError as error:
            complaints.about_key(keys, "range", str(error))
            continue
        fault = next((name for name in names if not _NAME.fullmatch(name)), None)
        if fault is not None:
            complaints.about_key(keys, "node-name", f"`{fault}` cannot be the name of a node", _name_help(key))
        elif "all" in names:
            complaints.about_key(keys, "node-name", "`all` means every node and cannot be the name of one")
        elif len(entries) + len(names) > LARGEST:
            complaints.about_key(keys, "too-many-nodes", too_many)
            return {}
        else:
            _enter(key, names, entries, complaints)
    return entries


def _enter(key: str, names: list[str], entries: dict[str, NodeKey], complaints: Complaints) -> None:
    twice = next((name for name in names if name in entries), None)
    if twice is not None:
        first = complaints.document.key_span("nodes", entries[twice].key)
        where = f" on line {first.line}" if first else ""
        message = f"the node `{twice}` was already given{where}"
        complaints.about_key(("nodes", key), "duplicate-node", message, "rename one of the two")
    elif len(set(names)) < len(names):
        complaints.about_key(("nodes", key), "duplicate-node", f"`{key}` names a node twice", "ranges must not overlap")
    for index, name in enumerate(names):
        entries.setdefault(name, NodeKey(key, index, len(names)))


def group_members(
    groups: Mapping[str, Any], entries: Mapping[str, NodeKey], complaints: Complaints
) -> dict[str, set[str]]:
    """The nodes of each group that is sound."""
    found: dict[str, set[str]] = {}
    bounds = _Bounds(entries)
    for name, group in groups.items():
        keys = ("groups", name)
        if not _NAME.fullmatch(name):
            complaints.about_key(keys, "group-name", f"`{name}` cannot be the name of a group", _name_help(name))
        elif name == "all":
            complaints.about_key(keys, "group-name", "`all` means every node and cannot be the name of a group")
        elif name in entries:
            message = f"`{name}` is the name of a node and cannot be that of a group as well"
            complaints.about_key(keys, "group-name", message, "rename the group")
        elif "nodes" in group:
            found[name] = _members(name, group["nodes"], complaints, bounds)
    return found


class _Bounds:
    """What may be spent on the groups of one inventory."""

    def __init__(self, entries: Mapping[str, NodeKey]) -> None:
        self.names = Names(entries)
        self._looked_at = 0
        self._compared = 0

    def allows(self, pattern: str) -> bool:
        self._looked_at += names_looked_at(pattern, self.names)
        return self._looked_at <= MOST_LOOKED_AT

    @property
    def guess(self) -> bool:
        return self._compared < MOST_COMPARED

    def failed(self) -> None:
        """A pattern held names that are unknown."""
        self._compared += min(len(self.names), COMPARED)


def _members(name: str, nodes: Any, complaints: Complaints, bounds: _Bounds) -> set[str]:
    """A list joins its patterns; `!` and `&` reach only as far as their own item."""
    members: set[str] = set()
    items = [(("groups", name, "nodes", index), item) for index, item in enumerate(nodes)]
    for keys, pattern in items if isinstance(nodes, list) else [(("groups", name, "nodes"), nodes)]:
        if pattern is None:
            continue
        if not bounds.allows(pattern):
            message = f"the groups up to here already stand for more than {MOST_LOOKED_AT:,} names to look at"
            complaints.about_value(keys, "too-many-names", message, "write fewer patterns, of which each names more")
            return members
        try:
            members |= matching(pattern, bounds.names, {}, complaints.document.span(*keys), guess=bounds.guess)
        except FilesWrong as wrong:
            bounds.failed()
            complaints.take_over(wrong)
            complaints.wrong.add(keys)
    return members
