"""Makes the nodes of an inventory: expands their names, finds their groups, and folds each node out of its levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from runbook.files.address import address_fault, strip_brackets
from runbook.files.environment_values import HOLDS_UNQUOTABLE, UNQUOTABLE_CHARACTER, EnvReader
from runbook.files.node_sets import (
    MAX_COMPARED_NAMES,
    MAX_NAMES,
    Names,
    convert_foreign_ranges,
    expand,
    has_range,
    matching_cost,
    matching_names,
)
from runbook.files.problems import PlacedProblems, line_break_help
from runbook.files.scalars import parse_seconds
from runbook.files.suggestions import split_joined_key
from runbook.files.value_origins import Layer
from runbook.files.yaml_document import KeyPath
from runbook.model.errors import FilesWrong
from runbook.model.inventory import NODE_NAME, NODE_NAME_HELP, Container, EnvValue, Kubernetes, Node, Slurm, Ssh

MAX_SEARCHED_PARTS = 4_000_000  # matches of a name with a pattern, in all groups: 10,000 nodes, 400 times `*`
MAX_NAME_COMPARISONS = 10_000  # comparisons of a known name with an unknown one, in all groups, to suggest the nearest
_NAME_HELP = f"{NODE_NAME_HELP}; ranges are written [01-04]"


def _name_help(name: str) -> str:
    joined = split_joined_key(name, name=True)
    ranged = convert_foreign_ranges(name)
    return joined[1] if joined else f'write `"{ranged}"`' if ranged != name else _NAME_HELP


@dataclass(frozen=True, slots=True)
class NodeKey:
    """The key of `nodes:` that a node came from; the node is number `index` (from 0) of the `count` names of that
    key."""

    key: str
    index: int
    count: int


def node_entries(nodes: Mapping[str, Any], placed: PlacedProblems) -> dict[str, NodeKey]:
    """Every node's name with its key, in the order of the file, with ranges expanded in place. Bad names are reported
    and left out; above MAX_NAMES nodes there are none."""
    entries: dict[str, NodeKey] = {}
    too_many = f"there are more than {MAX_NAMES:,} nodes"
    if len(nodes) > MAX_NAMES:
        placed.about_key(("nodes",), "too-many-nodes", too_many)
        return {}
    for key in nodes:
        keys = ("nodes", key)
        try:
            names = expand(key)
        except ValueError as error:
            placed.about_key(keys, "range", str(error))
            continue
        fault = next((name for name in names if not NODE_NAME.fullmatch(name)), None)
        if fault is not None:
            placed.about_key(keys, "node-name", f"`{fault}` cannot be the name of a node", _name_help(key))
        elif "all" in names:
            placed.about_key(keys, "node-name", "`all` means every node and cannot be the name of one")
        elif len(entries) + len(names) > MAX_NAMES:
            placed.about_key(keys, "too-many-nodes", too_many)
            return {}
        else:
            _enter_names(key, names, entries, placed)
    return entries


def _enter_names(key: str, names: list[str], entries: dict[str, NodeKey], placed: PlacedProblems) -> None:
    """Enters the names of a key of `nodes:`; reports names that are given twice."""
    twice = next((name for name in names if name in entries), None)
    if twice is not None:
        first = placed.document.key_span("nodes", entries[twice].key)
        where = f" on line {first.line}" if first else ""
        message = f"the node `{twice}` was already given{where}"
        placed.about_key(("nodes", key), "duplicate-node", message, "rename one of the two")
    elif len(set(names)) < len(names):
        placed.about_key(("nodes", key), "duplicate-node", f"`{key}` names a node twice", "ranges must not overlap")
    for index, name in enumerate(names):
        entries.setdefault(name, NodeKey(key, index, len(names)))


def group_members(
    groups: Mapping[str, Any], entries: Mapping[str, NodeKey], placed: PlacedProblems
) -> dict[str, set[str]]:
    """The names of the nodes of each sound group, by the group's name."""
    found: dict[str, set[str]] = {}
    bounds = _Bounds(entries)
    for name, group in groups.items():
        keys = ("groups", name)
        if not NODE_NAME.fullmatch(name):
            placed.about_key(keys, "group-name", f"`{name}` cannot be the name of a group", _name_help(name))
        elif name == "all":
            placed.about_key(keys, "group-name", "`all` means every node and cannot be the name of a group")
        elif name in entries:
            message = f"`{name}` is the name of a node and cannot be that of a group as well"
            placed.about_key(keys, "group-name", message, "rename the group")
        elif "nodes" in group:
            found[name] = _members_of_group(name, group["nodes"], placed, bounds)
    return found


class _Bounds:
    """Bounds the work on the patterns of all groups of one inventory."""

    def __init__(self, entries: Mapping[str, NodeKey]) -> None:
        self.names = Names(entries)
        self._looked_at = 0
        self._compared = 0

    def allows(self, pattern: str) -> bool:
        """Whether the work so far, with that of this pattern added, is within the bound."""
        self._looked_at += matching_cost(pattern, self.names)
        return self._looked_at <= MAX_SEARCHED_PARTS

    @property
    def guess(self) -> bool:
        """Whether the nearest known name may still be looked up for an unknown one."""
        return self._compared < MAX_NAME_COMPARISONS

    def failed(self) -> None:
        """Counts the comparisons for a pattern that had unknown names."""
        self._compared += min(len(self.names), MAX_COMPARED_NAMES)


def _members_of_group(name: str, nodes: Any, placed: PlacedProblems, bounds: _Bounds) -> set[str]:
    """The names of a group's nodes. A list is the union of its patterns; `!` and `&` act only within their own item."""
    members: set[str] = set()
    items = [(("groups", name, "nodes", index), item) for index, item in enumerate(nodes)]
    for keys, pattern in items if isinstance(nodes, list) else [(("groups", name, "nodes"), nodes)]:
        if pattern is None:
            continue
        if not bounds.allows(pattern):
            message = f"the groups up to here already stand for more than {MAX_SEARCHED_PARTS:,} names to look at"
            placed.about_value(keys, "too-many-names", message, "write fewer patterns that each name more")
            return members
        try:
            members |= matching_names(pattern, bounds.names, {}, placed.document.span(*keys), guess=bounds.guess)
        except FilesWrong as wrong:
            bounds.failed()
            placed.take_over(wrong)
            placed.wrong.add(keys)
    return members


# One node out of its levels: `defaults`, then its groups' defaults, then its own settings, then `-e`.

_DEFAULT_SSH = Ssh()


class _Folded(NamedTuple):
    """The values that have won so far, by key (`("ssh", "user")`), and where in the document each of them stands."""

    values: dict[KeyPath, Any]
    places: dict[KeyPath, KeyPath]


class Folding:
    """Folds the nodes of one inventory. Mistakes are reported to `placed`, and their values are left at the
    defaults."""

    def __init__(
        self, data: Mapping[str, Any], placed: PlacedProblems, env: EnvReader, extra_vars: Mapping[str, object]
    ) -> None:
        self.layers: dict[str, tuple[Layer, ...]] = {}  # by the name of a folded node, the weakest level first
        self._data = data
        self._placed = placed
        self._env = env
        self._extra_vars = extra_vars
        self._shared: dict[tuple[str, ...], tuple[tuple[Layer, ...], _Folded]] = {}
        self._alike: dict[tuple[str, ...], Node] = {}  # by groups, a node without settings of its own
        self._looked_at: set[KeyPath] = set()
        self._ranges: dict[KeyPath, list[str]] = {}
        self._conflicts: set[tuple[str, str, KeyPath]] = set()

    def node(self, name: str, entry: NodeKey, groups: tuple[str, ...]) -> Node:
        """The node of this name, folded out of its levels."""
        layers, shared = self._of_groups(groups)
        own = Layer("node", ("nodes", entry.key), self._data["nodes"][entry.key] or {})
        self.layers[name] = (*layers, own)
        if not own.settings:  # such nodes are alike but for name and address: one is folded, and then copied
            if groups not in self._alike:
                self._alike[groups] = self._folded(name, entry, groups, shared)
            return replace(self._alike[groups], name=name, address=self._address(entry, ("address",), shared) or name)
        folded = _Folded(dict(shared.values), dict(shared.places))
        for key, place, value in own.flat():
            folded.values[key] = value
            folded.places[key] = place
        return self._folded(name, entry, groups, folded)

    def _folded(self, name: str, entry: NodeKey, groups: tuple[str, ...], folded: _Folded) -> Node:
        """The node with these values; keys without a value get their defaults."""
        shell = folded.values.get(("shell",), "sh")
        return Node(
            name=name,
            address=self._address(entry, ("address",), folded) or name,
            connection=folded.values.get(("connection",), "ssh"),
            ssh=self._ssh(entry, folded),
            slurm=Slurm(self._text(("slurm", "job"), folded)),
            kubernetes=self._kubernetes(folded),
            container=self._container(folded),
            inside=self._inside(folded),
            python=self._text(("python",), folded) or ("python3" if shell == "sh" else "python"),
            shell=shell,
            activate=self._text(("activate",), folded),
            workdir=self._text(("workdir",), folded) or "~/.runbook",
            gpus=self._gpus(folded),
            processes=int(folded.values.get(("processes",), 1)),
            rack=self._text(("rack",), folded),
            leaf=self._text(("leaf",), folded),
            env=self._node_env(folded),
            vars={**self._vars(folded), **self._extra_vars},
            groups=groups,
        )

    def _of_groups(self, groups: tuple[str, ...]) -> tuple[tuple[Layer, ...], _Folded]:
        """The levels that are weaker than a node's own (the defaults and its groups), and the values folded from them;
        worked out once for each set of groups."""
        if groups in self._shared:
            return self._shared[groups]
        layers = [Layer("defaults", ("defaults",), self._data.get("defaults") or {})]
        for group in groups:
            settings = self._data["groups"][group].get("defaults") or {}
            layers.append(Layer(f"group {group}", ("groups", group, "defaults"), settings))
        folded = _Folded({}, {})
        set_by: dict[KeyPath, str] = {}
        for group, layer in zip(("", *groups), layers, strict=True):
            for key, place, value in layer.flat():
                if key in set_by and not _is_same_value(folded.values[key], value):
                    self._conflict(key, set_by[key], folded.places[key], group, place)
                if group:
                    set_by[key] = group
                folded.values[key] = value
                folded.places[key] = place
        self._shared[groups] = (tuple(layers), folded)
        return self._shared[groups]

    def _conflict(self, key: KeyPath, first: str, first_place: KeyPath, second: str, second_place: KeyPath) -> None:
        """Reports, once, a key that two groups of one node set differently."""
        if (first, second, key) in self._conflicts:
            return
        self._conflicts.add((first, second, key))
        name = ".".join(map(str, key))
        message = f"the groups `{first}` and `{second}` share a node and set `{name}` differently"
        there = self._placed.document.key_span(*first_place)
        help = f"`{first}` sets it at {there}; keep one of the two, or let the groups share no node"
        self._placed.about_key(second_place, "group-conflict", message, help)

    def _text(self, key: KeyPath, folded: _Folded) -> str | None:
        """The value of a key as text, None if it is not set; reports characters that no shell can carry."""
        if key not in folded.values:
            return None
        text = str(folded.values[key])
        if self._first_look(folded.places[key]) and UNQUOTABLE_CHARACTER.search(text):
            message = f"`{key[-1]}` {HOLDS_UNQUOTABLE}"
            place = folded.places[key]
            self._placed.about_value(place, "line-break", message, line_break_help(self._placed.document, place))
        return text

    def _address(self, entry: NodeKey, key: KeyPath, folded: _Folded) -> str | None:
        """The address or ssh host of one node; where the node's entry gives a range, the node's member of that range.
        None if it is not set, or the range is wrong."""
        if key not in folded.values:
            return None
        place = folded.places[key]
        text = strip_brackets(folded.values[key])
        if has_range(text) and place[:2] == ("nodes", entry.key):
            if place not in self._ranges:
                self._ranges[place] = self._paired(text, place, entry)
            members = self._ranges[place]
            return members[entry.index] if members else None
        if self._first_look(place):
            self.check_address(text, place)
        return text

    def _paired(self, text: str, place: KeyPath, entry: NodeKey) -> list[str]:
        """The addresses of a range, one for each name of the entry; empty after a problem."""
        try:
            members = expand(text)
        except ValueError as error:
            self._placed.about_value(place, "range", str(error))
            return []
        if len(members) != entry.count:
            nodes = "1 node" if entry.count == 1 else f"{entry.count} nodes"
            addresses = "1 address" if len(members) == 1 else f"{len(members)} addresses"
            message = f"`{text}` gives {addresses}, and `{entry.key}` is {nodes}"
            help = "they are paired one by one, so both ranges must have one size"
            self._placed.about_value(place, "range-size", message, help)
            return []
        return members if all(self.check_address(member, place) for member in members) else []

    def check_address(self, text: str, place: KeyPath) -> bool:
        """Whether `text` may be an address; reports a problem if not."""
        fault = address_fault(text)
        if fault is not None:
            self._placed.about_value(place, "bad-address", *fault)
        return fault is None

    def _ssh(self, entry: NodeKey, folded: _Folded) -> Ssh:
        given = _block_values("ssh", folded)
        if not given:
            return _DEFAULT_SSH
        return Ssh(
            host=self._address(entry, ("ssh", "host"), folded),
            user=given.get("user"),
            port=int(given["port"]) if "port" in given else None,
            key=self._text(("ssh", "key"), folded),
            jump=given.get("jump"),
            host_keys=given.get("host_keys", "strict"),
            connect_timeout_s=self._seconds(("ssh", "connect_timeout"), folded, default=5.0),
        )

    def _kubernetes(self, folded: _Folded) -> Kubernetes:
        """The node's pod or selector; reports a node that has both. A null takes away what a weaker level gives."""
        given = {
            key: self._text(("kubernetes", key), folded)
            for key, value in _block_values("kubernetes", folded).items()
            if value
        }
        if given.get("pod") and given.get("selector"):
            place = folded.places["kubernetes", "selector"]
            if self._first_look((*place, "and pod")):
                message = "a node has either `pod` or `selector`: both say which pod it is"
                other = self._placed.document.key_span(*folded.places["kubernetes", "pod"])
                help = f"keep one, or remove what a weaker level gives with `pod: null`; the other is at {other}"
                self._placed.about_key(place, "pod-and-selector", message, help)
        return Kubernetes(**given)

    def _container(self, folded: _Folded) -> Container | None:
        """The node's container, None if it has none. Reports a container together with `inside`, and either of them on
        a Windows node."""
        given = folded.values.get(("container",))
        key = next((key for key in (("container",), ("inside",)) if folded.values.get(key)), None)
        if key is not None:
            place = folded.places[key]
            if given and folded.values.get(("inside",)) and self._first_look((*place, "and inside")):
                message = "a node has either `container` or `inside`: both say how its container is entered"
                other = self._placed.document.key_span(*folded.places["inside",])
                weaker = f"remove what a weaker level gives with `{key[0]}: null`"
                help = f"keep one, or {weaker}; the other is at {other}"
                self._placed.about_key(place, "container-and-inside", message, help)
            shell = folded.values.get(("shell",), "sh")
            if shell != "sh" and self._first_look((*place, shell)):
                message = f"`{key[0]}` leads into a container on Linux, and `shell: {shell}` makes it a Windows node"
                self._placed.about_key(place, "container-on-windows", message, "remove one of the two")
        if not given or not given.keys() >= {"runtime", "name"}:  # a wrong part was reported and left out
            return None
        return Container(given["runtime"], given["name"])

    def _inside(self, folded: _Folded) -> tuple[str, ...]:
        words = [str(word) for word in folded.values.get(("inside",)) or ()]
        if words and self._first_look(folded.places["inside",]) and any(map(UNQUOTABLE_CHARACTER.search, words)):
            message = "`inside` holds a line break or a character that no command line can carry"
            self._placed.about_value(folded.places["inside",], "line-break", message, "write each word on one line")
        return tuple(words)

    def _seconds(self, key: KeyPath, folded: _Folded, *, default: float) -> float:
        if key not in folded.values:
            return default
        try:
            return parse_seconds(folded.values[key])
        except ValueError as error:
            if self._first_look(folded.places[key]):
                self._placed.about_value(folded.places[key], "duration", str(error))
            return default

    def _gpus(self, folded: _Folded) -> tuple[int, ...]:
        given = folded.values.get(("gpus",), 0)
        if not isinstance(given, list):
            return tuple(range(int(given)))
        place = folded.places[("gpus",)]
        if self._first_look(place):
            before = set()
            for index, device in enumerate(given):
                twice = device in before
                before.add(device)
                if twice and device is not None:
                    message = f"GPU {device} is listed twice"
                    self._placed.about_value((*place, index), "duplicate-gpu", message, "a rank needs its own GPU")
        return tuple(int(device) for device in given if device is not None)

    def _node_env(self, folded: _Folded) -> dict[str, EnvValue]:
        found: dict[str, EnvValue] = {}
        for key, value in folded.values.items():
            if key[0] == "env" and (one := self._env.value(value, folded.places[key])) is not None:
                found[str(key[1])] = one
        return found

    def _vars(self, folded: _Folded) -> dict[str, Any]:
        as_typed = self._placed.document.as_typed
        found = _block_values("vars", folded)
        for name in found:
            if self._first_look(place := folded.places["vars", name]):
                self._placed.no_secret(found[name], place)
        return {name: as_typed(value, *folded.places["vars", name]) for name, value in found.items()}

    def _first_look(self, place: KeyPath) -> bool:
        """Whether the value at this place has not been judged yet; many nodes may share it, and it is judged once."""
        first = place not in self._looked_at
        self._looked_at.add(place)
        return first


def _block_values(name: str, folded: _Folded) -> dict[str, Any]:
    return {str(key[1]): value for key, value in folded.values.items() if key[0] == name}


def _is_same_value(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)
