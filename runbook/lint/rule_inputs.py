"""Reads files for the rules: each file as its author wrote it, as far as it can be read, with the place of each
value."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TypeVar

from runbook.files.environment_values import AnyVariable
from runbook.files.file_kinds import FileKind, own_file_kind, wrong_kind_problem
from runbook.files.inventory import examine_inventory
from runbook.files.playbook import examine_playbook, has_launch, launch_document
from runbook.files.schema import load_schema
from runbook.files.value_origins import Origins
from runbook.files.yaml_document import Document, KeyPath, read_document
from runbook.lint.find_files import outside_target, repository_root
from runbook.model.errors import Problem, Span
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory, Node
from runbook.model.playbook import Playbook
from runbook.model.safe_files import is_file
from runbook.model.units import name_list_text

NETWORK_INTERFACE_KEY = ("network", "interface")
# The keys of an inventory that templates see as facts of the cluster.
_CLUSTER_KEYS = ("gpus", "processes", "shell", "backend", "infiniband", "master", "order", "vars")


@dataclass(frozen=True, slots=True, eq=False)
class InventoryFile:
    """An inventory without the values that loading found wrong; `wrong` has the places of these."""

    document: Document
    inventory: Inventory
    origins: Origins
    wrong: frozenset[KeyPath] = frozenset()

    def sound(self, *names: str) -> bool:
        """Whether no value of these keys was found wrong anywhere in the file: `sound("gpus", "backend")`.

        A rule asks before it judges: the default in place of a wrong value was not written by the user. A wrong block
        makes all of its keys wrong, and an unknown key may be any key misspelt.
        """
        return not any(_casts_doubt_on(keys, names) for keys in self.wrong)

    @property
    def names_known(self) -> bool:
        """Whether no node, no group and no group's members were left out."""
        return not any(
            len(keys) < 2
            or (len(keys) == 2 and keys[0] in ("nodes", "groups"))
            or (keys[0] == "groups" and keys[2] == "nodes")
            for keys in self.wrong
        )

    @property
    def facts_known(self) -> bool:
        """Whether what templates see of the cluster (ranks, GPUs, backend, master) is what the user wrote."""
        return self.names_known and self.sound(*_CLUSTER_KEYS)


@dataclass(frozen=True, slots=True, eq=False)
class PlaybookFile:
    """A playbook, and the inventory that it names: None if it names none, or if that inventory cannot be read."""

    document: Document
    playbook: Playbook
    inventory: InventoryFile | None
    wrong: frozenset[KeyPath] = frozenset()

    def sound(self, *names: str) -> bool:
        """Whether no value of these top-level keys was found wrong, and no unknown key, which may be one misspelt."""
        known = load_schema("playbook")["properties"]
        return not any(not keys or keys[0] in names or keys[0] not in known for keys in self.wrong)


def _casts_doubt_on(keys: KeyPath, names: tuple[str, ...]) -> bool:
    """Whether a wrong value at `keys` makes it uncertain what the author wrote for the keys `names`."""
    if any(name in keys for name in names):
        return True
    words = [key for key in keys if isinstance(key, str)]
    free = "env" in words[:-1] or "vars" in words[:-1]  # the user chooses the names in these
    return not free and (not words or words[-1] not in _single_value_keys())


@cache
def _single_value_keys() -> frozenset[str]:
    """The keys of an inventory that hold a single value, and no keys of their own."""
    root = load_schema("inventory")
    parts = [root, *root["$defs"].values()]
    found: set[str] = set()
    while parts:
        for name, part in parts.pop().get("properties", {}).items():
            parts.append(part)
            block = "properties" in part or "additionalProperties" in part
            if not block and part.get("$ref") in (None, "#/$defs/port", "#/$defs/duration"):
                found.add(name)
    return frozenset(found - {"nodes"})


# Which values of an inventory its author wrote, and where: for rules that judge by them.

Fault = TypeVar("Fault")


def is_soundly_given(file: InventoryFile, *keys: str) -> bool:
    """Whether the file gives a value at `keys`, and a sound one."""
    return keys in file.document.spans and keys not in file.wrong


def trusted_nodes(file: InventoryFile, *names: str) -> Sequence[Node]:
    """The nodes whose values of these keys (`gpus`, `ssh`) are certain, because nothing wrong can have touched them.

    An unknown key may be any key misspelt. Values that were left out have been reported by loading.
    """
    if not file.wrong:
        return file.inventory.nodes
    doubts = _doubts_by_key(file)
    return _nodes_without_doubt(file, frozenset(doubts.keys() & {_ANY_KEY, *names}))


def are_all_trusted(file: InventoryFile, *names: str) -> bool:
    """Whether no node was left out, and every node is `trusted` for these keys."""
    lost = any(len(keys) == 2 and keys[0] in ("nodes", "groups") for keys in file.wrong)
    return not lost and len(trusted_nodes(file, *names)) == len(file.inventory.nodes)


def is_value_meant(file: InventoryFile, block: str, name: str) -> bool:
    """Whether the value of `name` in a top-level block is what the author wrote, or was left out on purpose."""
    known = load_schema("inventory")["properties"]
    inside = known[block]["properties"]
    for keys in file.wrong:
        if not keys or keys[0] not in known or keys == (block,):
            return False
        if keys[0] == block and (keys[1] == name or keys[1] not in inside):
            return False
    return True


def nodes_by_place(file: InventoryFile, nodes: Iterable[Node], *key: str) -> Iterator[tuple[Span | None, list[Node]]]:
    """Yields each place that gives these nodes a value for the key, once, with the nodes that get it from there.

    Without a value, the place is the node's own key.
    """
    yield from values_by_key(
        (file.origins.span(node.name, *key) or node_span(file, node), node) for node in nodes
    ).items()


def faulty_texts(
    file: InventoryFile, key: tuple[str, ...], fault: Callable[[str, str], Fault | None]
) -> Iterator[tuple[Span | None, list[Node], str, Fault]]:
    """Yields each place that gives nodes a text with a fault, those nodes, the text, and the fault.

    `fault` judges a text for a shell; it is asked once for each pair, however many nodes share them.
    """
    judge = cache(fault)
    read = _NODE_TEXT_READERS[key]
    texts = ((text, node) for node in trusted_nodes(file, key[0], "shell") if (text := read(node)) is not None)
    wrong = values_by_key(((text, node.shell), node) for text, node in texts if judge(text, node.shell))
    for (text, shell), nodes in wrong.items():
        if found := judge(text, shell):
            yield from ((span, some, text, found) for span, some in nodes_by_place(file, nodes, *key))


def node_span(file: InventoryFile, node: Node) -> Span | None:
    """The place of the node's name among the `nodes:`."""
    return file.document.key_span(*file.origins.entry(node.name))


def winning_level(file: InventoryFile, node: Node, *key: str) -> str | None:
    """Which level gave the value: `defaults`, `group rack1`, `node`; None if there is no value."""
    return next((one.level for one in file.origins.candidates(node.name, key) if one.wins), None)


def named_nodes(nodes: Sequence[Node]) -> str:
    """`node-a`, `node-b` and 4 more."""
    return name_list_text((f"`{node.name}`" for node in nodes), most=4, first=3)


_NODE_TEXT_READERS: Mapping[tuple[str, ...], Callable[[Node], str | None]] = {
    ("activate",): lambda node: node.activate,
    ("python",): lambda node: node.python,
    ("workdir",): lambda node: node.workdir,
    ("ssh", "key"): lambda node: node.ssh.key,
    ("ssh", "user"): lambda node: node.ssh.user,
    ("ssh", "host"): lambda node: node.ssh.host,
    ("address",): lambda node: node.address,
}


def has_or_have(nodes: Sequence[Node]) -> str:
    return "has" if len(nodes) == 1 else "have"


def is_or_are(nodes: Sequence[Node]) -> str:
    return "is" if len(nodes) == 1 else "are"


def each_of_nodes(nodes: Sequence[Node]) -> str:
    """`node-a`, or each of several."""
    return named_nodes(nodes) if len(nodes) == 1 else f"each of {named_nodes(nodes)}"


_ANY_KEY = ""
"""Stands for every key in `_doubts_by_key`: a wrong value may have been meant for any key."""


@dataclass(slots=True)
class _Doubt:
    """The nodes that wrong values make doubtful: all, those of some entries of `nodes:`, those of some groups."""

    all: bool = False
    entries: set[KeyPath] = field(default_factory=set)
    groups: set[object] = field(default_factory=set)


@lru_cache(maxsize=2)  # many rules ask the same of one file
def _doubts_by_key(file: InventoryFile) -> Mapping[str, _Doubt]:
    """The doubtful nodes, by the key of a node's settings that is in doubt."""
    top = load_schema("inventory")["properties"]
    known = load_schema("inventory")["$defs"]["node"]["properties"]
    doubts: defaultdict[str, _Doubt] = defaultdict(_Doubt)

    def about(inside: KeyPath) -> _Doubt:
        return doubts[str(inside[0]) if inside and inside[0] in known else _ANY_KEY]

    for keys in file.wrong:
        block = keys[0] if keys else None
        if block == "defaults":
            about(keys[1:]).all = True
        elif len(keys) < 2:
            if block in (None, "nodes", "groups") or block not in top:
                doubts[_ANY_KEY].all = True
        elif block == "nodes":
            about(keys[2:]).entries.add(keys[:2])
        elif block == "groups" and keys[2:3] == ("defaults",):
            about(keys[3:]).groups.add(keys[1])
        elif block == "groups":  # its members are in doubt, and may have been any node
            doubts[_ANY_KEY].all = True
    return doubts


@lru_cache(maxsize=16)
def _nodes_without_doubt(file: InventoryFile, names: frozenset[str]) -> Sequence[Node]:
    """The nodes that are not in doubt by any of these keys."""
    nodes = file.inventory.nodes
    doubts = [_doubts_by_key(file)[name] for name in names]
    if not doubts:
        return nodes
    if any(doubt.all for doubt in doubts):
        return ()
    entries = set[KeyPath]().union(*(doubt.entries for doubt in doubts))
    groups = set[object]().union(*(doubt.groups for doubt in doubts))
    return [node for node in nodes if file.origins.entry(node.name) not in entries and groups.isdisjoint(node.groups)]


# An inventory that several playbooks name is read once.


PLACEHOLDER_ENVIRON = AnyVariable("secret")
"""Where lint runs, secrets are not set: `{env: NAME}` stands for some text, whatever NAME is."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadFile:
    """A file that was read. `problems` are those of loading; `subject` is the inventory or the playbook that rules
    judge, None if the file could not be made into one. `launch` is an inventory's launch, if it has one, as a playbook.
    """

    document: Document
    kind: FileKind | None
    problems: tuple[Problem, ...]
    subject: InventoryFile | PlaybookFile | None = None
    launch: PlaybookFile | None = None


class ReadFiles:
    """Reads the files of one lint, each real path once. `roots` are the real paths of the trees that are linted."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._read: dict[str, ReadFile] = {}
        self._above: dict[str, Path] = {}  # by root, the folder below which names count

    def leads_out(self, playbook: Document, path: str) -> str | None:
        """The real path of the inventory at `path` that a playbook names, if a link leads there out of the roots; None
        otherwise."""
        real = outside_target(path, self._roots)
        typed = str(playbook.mapping.get("inventory", ""))
        plain = os.path.normpath(Path(playbook.path).parent.resolve() / typed)
        return real if real != plain else None

    def read(self, path: str, *, named: bool = True, kind: FileKind | None = None) -> ReadFile:
        """The file at `path`. When it is read the first time, `named` says that the user named it, and `kind` what it
        has to be, if that is known."""
        real = os.path.realpath(path)
        if real not in self._read:
            document = read_document(path)
            kind = kind or own_file_kind(document, named=named, folders=self._folders(real))
            self._read[real] = self._examined(document, kind)
        return self._read[real]

    def _folders(self, real: str) -> Sequence[str]:
        """The names of the folders that a file lies in: those inside its repository, or without a repository the linted
        folder and those inside it. Folders above these are not the project's."""
        folder = Path(real).parent
        root = next((root for root in self._roots if folder.is_relative_to(root)), str(folder))
        if root not in self._above:
            self._above[root] = repository_root(root) or Path(root).parent
        return folder.relative_to(self._above[root]).parts

    def _examined(self, document: Document, kind: FileKind | None) -> ReadFile:
        """The file that a document is, read as this kind."""
        if kind == "inventory":
            inventory = examine_inventory(document, environ=PLACEHOLDER_ENVIRON)
            if inventory.draft is None or inventory.origins is None:
                return ReadFile(document, kind, inventory.problems)
            file = InventoryFile(document, inventory.draft, inventory.origins, inventory.wrong)
            if not has_launch(document):
                return ReadFile(document, kind, inventory.problems, file)
            return _inventory_with_launch(document, inventory.problems, file)
        if kind == "playbook":
            from runbook.checks import CHECKS  # inventories need no checks, which load slowly

            playbook = examine_playbook(document, checks=CHECKS, environ=PLACEHOLDER_ENVIRON)
            if playbook.draft is None:
                return ReadFile(document, kind, playbook.problems)
            named = named_inventory_path(document)
            readable = named and is_file(named) and not self.leads_out(document, named)
            there = self.read(named, kind="inventory").subject if named and readable else None
            of_it = there if isinstance(there, InventoryFile) else None
            return ReadFile(
                document, kind, playbook.problems, PlaybookFile(document, playbook.draft, of_it, playbook.wrong)
            )
        other = wrong_kind_problem(document, None)
        return ReadFile(document, None, document.problems if other is None else (other,))


def _inventory_with_launch(document: Document, problems: tuple[Problem, ...], file: InventoryFile) -> ReadFile:
    """The file of an inventory with a `launch:`, which is read as a playbook as well."""
    from runbook.checks import CHECKS

    as_playbook = launch_document(document)
    launch = examine_playbook(as_playbook, checks=CHECKS, environ=PLACEHOLDER_ENVIRON)
    known = {(problem.span, problem.message) for problem in problems}  # both schemas judge the launch
    more = [problem for problem in launch.problems if (problem.span, problem.message) not in known]
    stages = None
    if launch.draft is not None:
        stages = PlaybookFile(as_playbook, launch.draft, file, launch.wrong)
    return ReadFile(document, "inventory", (*problems, *more), file, stages)


def named_inventory_path(playbook: Document) -> str | None:
    """The path of the inventory that a playbook names, as `run` finds it: relative to the playbook's own folder."""
    name = playbook.mapping.get("inventory")
    if not isinstance(name, str) or not name or "\0" in name:
        return None
    return os.path.normpath(Path(playbook.path).parent / name)
