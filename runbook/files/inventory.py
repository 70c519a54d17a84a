"""Reads an inventory file into an `Inventory`: expands names, folds nodes, orders ranks, settles the rendezvous."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from runbook.files.address import is_loopback, normal_spelling, strip_brackets
from runbook.files.environment_values import EnvReader
from runbook.files.file_kinds import unusable_file_problems
from runbook.files.nodes import Folding, NodeKey, group_members, node_entries
from runbook.files.problems import PlacedProblems, in_file_order
from runbook.files.scalars import parse_port_ranges
from runbook.files.schema import validate_document
from runbook.files.suggestions import did_you_mean
from runbook.files.value_origins import Layer, Origins
from runbook.files.yaml_document import Document, KeyPath, document_of, garbage_collector_paused
from runbook.model.errors import FilesWrong, Problem
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Infiniband, Inventory, Network, Node, Rendezvous

_NO_EXTRA_VARS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Examined:
    """The result of reading a file, and everything wrong with it. `draft` is the inventory with every wrong value left
    out, None when the file cannot be used at all; `wrong` holds the places of these values, so that no rule judges the
    defaults that took their place."""

    draft: Inventory | None
    origins: Origins | None
    problems: tuple[Problem, ...]
    wrong: frozenset[KeyPath] = frozenset()

    @property
    def inventory(self) -> Inventory | None:
        """The inventory, None if there is any problem."""
        return None if self.problems else self.draft


def load_inventory(
    source: str | Path | Document,
    *,
    extra_vars: Mapping[str, object] = _NO_EXTRA_VARS,
    environ: Mapping[str, str] | None = None,
) -> tuple[Inventory, Origins]:
    """The inventory of a file, or of a document that is in no file, and the origin of each of its values.

    Raises FilesWrong with every problem. `extra_vars` are those of `-e`: they win over every node's `vars`. `environ`
    is where `{env: NAME}` is looked up; None means this process's own environment.
    """
    document = document_of(source)
    examined = examine_inventory(document, extra_vars=extra_vars, environ=environ)
    if examined.inventory is None or examined.origins is None:
        raise FilesWrong(list(examined.problems))
    return examined.inventory, examined.origins


def examine_inventory(
    document: Document, *, extra_vars: Mapping[str, object] = _NO_EXTRA_VARS, environ: Mapping[str, str] | None = None
) -> Examined:
    """The inventory, the origins and all problems of a document, for lint and for loading alike; never raises for what
    is in a file."""
    if (fatal := unusable_file_problems(document, "inventory")) is not None:
        return Examined(None, None, fatal)
    judged = validate_document(document, "inventory")
    placed = PlacedProblems(document, "inventory")
    env = EnvReader(placed, os.environ if environ is None else environ)
    folding = Folding(judged.data, placed, env, extra_vars)
    with garbage_collector_paused():
        inventory = _Assembly(judged.data, placed, env, folding).inventory()
    own = [_with_template_help(problem, document) for problem in document.problems]
    problems = in_file_order([*own, *judged.problems, *placed.problems])
    wrong = frozenset(judged.wrong | placed.wrong)
    if inventory is None:
        return Examined(None, None, problems, wrong)
    for_every_rank = Layer("env of the inventory", (), {"env": judged.data.get("env")})
    return Examined(inventory, Origins(document, folding.layers, for_every_rank, extra_vars), problems, wrong)


def _with_template_help(problem: Problem, document: Document) -> Problem:
    """The problem, with its help replaced if it is an unquoted template outside of `launch:`: templates are filled in
    only there, so that quotes would not help elsewhere."""
    if problem.id != "yaml.unquoted-template":
        return problem
    launch = document.extent("launch")
    if launch and problem.span and launch[0] <= (problem.span.line, problem.span.column) < launch[1]:
        return problem
    return replace(problem, help="inventories fill in no templates: write the value itself")


def natural_sort_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sorting key that reads digits as numbers: gn6-2 stands before gn6-10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((0, int(part), part) if index % 2 else (1, 0, part) for index, part in enumerate(parts) if part)


NODE_ORDERS: Mapping[str, Callable[[str], Any] | None] = {"inventory": None, "name": natural_sort_key, "alphabet": str}
"""For each value of `order:`, the sorting key of a node's name by which the nodes after the master are ranked; None for
the order of the file."""


def default_backend(nodes: Iterable[Node]) -> str:
    """The backend of an inventory that names none: nccl, which needs a GPU and Linux on every node, or else gloo."""
    return "nccl" if all(node.gpus and not node.windows for node in nodes) else "gloo"


class _Assembly:
    """Puts the parts of one inventory together."""

    def __init__(self, data: Mapping[str, Any], placed: PlacedProblems, env: EnvReader, folding: Folding) -> None:
        self._data = data
        self._placed = placed
        self._env = env
        self._folding = folding

    def inventory(self) -> Inventory | None:
        """The inventory; None if no node is sound, which has then been reported."""
        entries = node_entries(self._data.get("nodes") or {}, self._placed)
        if not entries:
            return None
        groups = group_members(self._data.get("groups") or {}, entries, self._placed)
        groups_of = values_by_key((member, group) for group, members in groups.items() for member in members)
        nodes = [self._folding.node(name, entry, tuple(groups_of.get(name, ()))) for name, entry in entries.items()]
        self._duplicate_addresses(nodes, entries)
        ordered = self._ranked(nodes)
        rank = {node.name: place for place, node in enumerate(ordered)}
        source = self._placed.document.path
        return Inventory(
            name=self._data.get("name") or Path(source).stem,
            nodes=tuple(ordered),
            rendezvous=self._rendezvous(ordered, entries),
            network=self._network(),
            infiniband=self._infiniband(),
            env=self._env.read(self._data.get("env") or {}, ("env",)),
            groups={name: tuple(sorted(members, key=rank.__getitem__)) for name, members in groups.items()},
            source=source,
        )

    def _duplicate_addresses(self, nodes: list[Node], entries: Mapping[str, NodeKey]) -> None:
        """Reports nodes with the same login: they are one machine, given twice.

        One address behind different logins is not judged here: those may be two machines, which only `reach` can see.
        """
        seen: dict[tuple[object, ...], Node] = {}
        for node in nodes:
            if node.connection != "ssh":
                continue
            address = normal_spelling(node.address)
            host = normal_spelling(node.ssh.host) if node.ssh.host else address
            login = (address, host, node.ssh.usual_port, node.ssh.jump)
            first = seen.setdefault(login, node)
            entry = entries[node.name]
            keys: KeyPath = ("nodes", entry.key, "address")
            if first is node or keys in self._placed.wrong:
                continue
            if entries[first.name].key == entry.key:
                message = f"the {entry.count} nodes of `{entry.key}` have the same address, {node.address}"
                help = "give the address a range as long as the name's, for example 10.0.1.[1-4]"
            else:
                message = f"`{node.name}` and `{first.name}` have the same address, {node.address}"
                help = "give each node its own address"
                if node.container or node.inside:
                    help += f": the container's, with `ssh: {{host: {node.ssh.host or node.address}}}` to log in"
            self._placed.about_value(keys, "duplicate-address", message, help)

    def _ranked(self, nodes: list[Node]) -> list[Node]:
        master = self._master(nodes)
        key = NODE_ORDERS[self._data.get("order") or "inventory"]
        if key is not None:
            nodes = sorted(nodes, key=lambda node: key(node.name))
        return sorted(nodes, key=lambda node: node.name != master)

    def _master(self, nodes: list[Node]) -> str:
        master: str = (self._data.get("rendezvous") or {}).get("master", nodes[0].name)
        return master

    def _rendezvous(self, ordered: list[Node], entries: Mapping[str, NodeKey]) -> Rendezvous:
        """The rendezvous, with defaults filled in; reports an unknown master and a loopback address."""
        given = self._data.get("rendezvous") or {}
        first = ordered[0]
        master = given.get("master", first.name)
        if master not in entries:
            message = f"the master `{master}` is not among the nodes"
            help = _master_help(master, ordered) or did_you_mean(master, entries)
            self._placed.about_value(("rendezvous", "master"), "unknown-master", message, help)
        place: KeyPath = (
            ("rendezvous", "address") if "address" in given else ("nodes", entries[first.name].key, "address")
        )
        address = strip_brackets(given.get("address", first.address))
        sound = "address" not in given or self._folding.check_address(address, place)
        if sound and is_loopback(address) and len(ordered) > 1 and any(node.connection != "local" for node in ordered):
            message = f"with several nodes every rank would dial itself at {address}, and none would meet another"
            help = "give the master's address on the network that the nodes share"
            self._placed.about_value(place, "master-addr-loopback", message, help)
        return Rendezvous(
            master=master,
            address=address,
            port=int(given.get("port", 29500)),
            backend=given.get("backend") or default_backend(ordered),
        )

    def _network(self) -> Network:
        given = self._data.get("network") or {}
        ports = given.get("ports", [])
        items: list[tuple[KeyPath, object]] = [(("network", "ports"), ports)]
        if isinstance(ports, list):
            items = [(("network", "ports", index), item) for index, item in enumerate(ports) if item is not None]
        found: list[tuple[int, int]] = []
        for keys, item in items:
            try:
                found.extend(parse_port_ranges(item))
            except ValueError as error:
                help = "ports run from 1 to 65535; a range is written 29500-29510"
                self._placed.about_value(keys, "port-range", str(error), help)
        return Network(given.get("interface"), tuple(found))

    def _infiniband(self) -> Infiniband | None:
        given = self._data.get("infiniband")
        if given is None:
            return None
        rate = given.get("min_rate_gbps")
        return Infiniband(given.get("hca"), None if rate is None else float(rate))


def _master_help(master: str, nodes: Iterable[Node]) -> str | None:
    """The help for a `master:` that is a node's address, or that has a port behind it; None for any other."""
    found = re.fullmatch(r"(?P<host>[^:]+|\[.*\])(?::(?P<port>[0-9]{1,5}))?", master)
    host = strip_brackets(found["host"]) if found else master
    node = next((node.name for node in nodes if host in (node.name, node.address)), None)
    port = f", port: {found['port']}" if found and found["port"] else ""
    return f"write `rendezvous: {{master: {node}{port}}}`" if node else None


# An inventory as if it said `shell: X` for every node: what `--shell` asks for.


def with_shell(inventory: Inventory, origins: Origins, shell: str) -> Inventory:
    """The inventory with this shell on every node; defaults that depend on the shell (Python's name, the backend)
    follow it."""
    python = "python3" if shell == "sh" else "python"
    nodes = tuple(
        replace(node, shell=shell, python=node.python if origins.span(node.name, "python") else python)
        for node in inventory.nodes
    )
    rendezvous = inventory.rendezvous
    if not is_backend_given(origins):
        rendezvous = replace(rendezvous, backend=default_backend(nodes))
    return replace(inventory, nodes=nodes, rendezvous=rendezvous)


def is_backend_given(origins: Origins) -> bool:
    """Whether the file itself names the backend."""
    data = origins.document.data
    given = data.get("rendezvous") if isinstance(data, dict) else None
    return isinstance(given, dict) and "backend" in given
