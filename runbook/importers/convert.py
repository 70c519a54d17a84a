"""Turns an inventory of another kind into a draft of ours that loads: settles names, loopback, one machine given
twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from runbook.files.address import is_loopback, normal_spelling
from runbook.files.file_kinds import foreign_kind, is_yaml, refuse_unreadable
from runbook.files.inventory_draft import Draft, NodeDraft, SettingPath
from runbook.importers.ansible import read_ansible
from runbook.importers.batch_script import is_batch_script, read_batch_script
from runbook.importers.foreign_inventory import HOSTFILE_FORMAT, ForeignHost, ForeignInventory
from runbook.importers.host_lists import read_host_list, read_hostfile
from runbook.model.errors import FilesWrong
from runbook.model.grouping import values_by_key
from runbook.model.inventory import NODE_NAME
from runbook.model.units import first_items_text

_MAX_SHOWN_LINES = 3  # lines that a repeated remark names


def read_foreign_inventory(text: str, file: str, kind: str | None = None) -> ForeignInventory:
    """The inventory that a text holds, read as `kind`, or as what it looks like. Raises FilesWrong."""
    if kind == "script" or (kind is None and is_batch_script(text, file)):
        return read_batch_script(text, file)
    refuse_unreadable(text, file)
    kind = kind or foreign_kind(text, file)
    if kind == "hostfile":
        return read_hostfile(text, file)
    if kind == "slurm":
        return read_host_list(text, file)
    return read_ansible(text, file, yaml=is_yaml(text, file))


def draft_of_foreign_inventory(found: ForeignInventory, name: str) -> Draft:
    """The draft of our inventory, called `name`. What cannot stand in ours is left out, and a comment says so.

    Raises FilesWrong if no node would be left.
    """
    renamed = _node_name_by_host(found.hosts)
    nodes: list[NodeDraft] = []
    logins: dict[tuple[object, ...], str] = {}
    many = len(found.hosts) > 1 and not all(map(_is_local_host, found.hosts))
    for host in found.hosts:
        node = _node_of_host(host, renamed[host.name], many=many)
        first = None if node.left_out else logins.setdefault(_login_identity(node), node.name)
        if first not in (None, node.name):
            says = f"{node.name} has the address and the login of {first}: one machine, left out"
            address: dict[SettingPath, object] = {("address",): node.settings.get(("address",), node.name)}
            node = NodeDraft(node.name, address, (*node.says, says), left_out=True)
        nodes.append(node)
    kept = {node.name for node in nodes if not node.left_out}
    if not kept:
        message = "none of these hosts can be a node: every one of them is the machine that dials it"
        help = "give each the address where the others reach it"
        raise FilesWrong.of("import.only-loopback", message, span=found.hosts[0].span, help=help)
    groups, group_names = _groups_with_nodes(found, renamed, kept)
    footer = [*_rename_remarks(renamed, "host"), *_rename_remarks(group_names, "group"), *_remark_lines(found)]
    if footer:
        footer = [f"Of {found.source} this was not carried over as it is:", *(f"  {line}" for line in footer)]
    return Draft(
        name=name,
        nodes=tuple(nodes),
        header=(f"Made from {found.source} ({found.kind}) by `runbook inventory import`.",),
        blocks={"rendezvous": {"port": 29500}, **found.blocks},
        groups=groups,
        group_settings={
            group_names[group]: settings for group, settings in found.group_settings.items() if group in group_names
        },
        comments={("rendezvous", "port"): "ranks dial the first node here; `master:` names another"},
        hints={
            "network": ("interface: eth0    # the one between the nodes: becomes NCCL_SOCKET_IFNAME",),
            **_gpu_hints(found),
        },
        footer=tuple(footer),
    )


MAX_MADE_NAME_CHARACTERS = 190
"""The most characters of a name that is made here: with a number behind it, NODE_NAME still takes it."""


def _node_name_by_host(hosts: Iterable[ForeignHost]) -> dict[str, str]:
    """A node's name for each host: its own, or one that our inventory can hold."""
    taken = {host.name for host in hosts if NODE_NAME.fullmatch(host.name) and host.name != "all"}
    return {host.name: host.name if host.name in taken else _take_unused_name(host.name, taken) for host in hosts}


def _take_unused_name(name: str, taken: set[str]) -> str:
    base = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[:MAX_MADE_NAME_CHARACTERS] or "node"
    base = base if base != "all" else "all-node"
    free = next(
        each for number in range(1, 1_000_000) if (each := base if number == 1 else f"{base}-{number}") not in taken
    )
    taken.add(free)
    return free


def _is_local_host(host: ForeignHost) -> bool:
    """Whether a host is the machine that runs Ansible, which many inventories list beside the machines that work."""
    return host.settings.get(("connection",)) == "local"


def _node_of_host(host: ForeignHost, name: str, *, many: bool) -> NodeDraft:
    """The node of a host, with a comment where it needs one; it is left out if no other node could reach it."""
    settings: dict[SettingPath, object] = dict(host.settings)
    address = str(settings.get(("address",), host.name))
    if ("address",) not in settings and name != host.name:
        settings["address",] = host.name
    if _is_local_host(host) and many:
        says = f"{name} is the machine that runs Ansible; with several nodes it needs an address that the others reach"
        return NodeDraft(name, settings, (says,), left_out=True)
    if is_loopback(address) and many:
        settings["ssh", "host"] = address
        settings.pop(("address",), None)
        if is_loopback(name):
            says = f"{address} is every node's own: write the address where the others reach this one"
            return NodeDraft(name, settings, (says,), left_out=True)
        says = f"logged in to over {address}; `address:` must be where the other nodes reach it"
        return NodeDraft(name, settings, (says,))
    if settings.get(("address",)) == name:
        del settings["address",]
    return NodeDraft(name, settings)


def _login_identity(node: NodeDraft) -> tuple[object, ...]:
    """The login of a node; two nodes with one login are to the loader one machine given twice."""
    if node.settings.get(("connection",)) == "local":
        return (node.name,)
    address = normal_spelling(str(node.settings.get(("address",), node.name)))
    host = normal_spelling(str(node.settings.get(("ssh", "host"), address)))
    return (address, host, node.settings.get(("ssh", "port"), 22), node.settings.get(("ssh", "jump")))


def _gpu_hints(found: ForeignInventory) -> dict[str, tuple[str, ...]]:
    """A comment about GPUs: where their number comes from, or that it is not known."""
    if not any(("gpus",) in host.settings for host in found.hosts):
        return {"defaults": (f"gpus: 8    # this {found.kind} does not say how many GPUs a node has",)}
    if found.kind == HOSTFILE_FORMAT:
        return {"defaults": ("gpus: taken from the slots; on nodes without GPUs write `processes:` instead",)}
    return {}


def _groups_with_nodes(
    found: ForeignInventory, renamed: Mapping[str, str], kept: set[str]
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """The groups that still have nodes, under names that no node has; and each group's new name."""
    groups: dict[str, tuple[str, ...]] = {}
    names: dict[str, str] = {}
    taken = set(renamed.values()) | {"all"}
    taken |= {group for group in found.groups if NODE_NAME.fullmatch(group) and group not in taken}
    for group, members in found.groups.items():
        nodes = tuple(renamed[member] for member in members if renamed[member] in kept)
        if not nodes:
            continue
        fits = NODE_NAME.fullmatch(group) and group != "all" and group not in renamed.values()
        names[group] = group if fits else _take_unused_name(group if group not in taken else f"group-{group}", taken)
        groups[names[group]] = nodes
    return groups, names


def _rename_remarks(names: Mapping[str, str], what: str) -> list[str]:
    return [f"the {what} {old} is called {new} here" for old, new in names.items() if old != new]


def _remark_lines(found: ForeignInventory) -> list[str]:
    """Each remark once, with the lines where it holds."""
    lines = values_by_key((remark.says, remark.line) for remark in found.remarks)
    return [
        f"{_file_and_lines(found.source, sorted(set(at)))}: {says}"
        for says, at in sorted(lines.items(), key=lambda item: min(item[1]))
    ]


def _file_and_lines(file: str, lines: list[int]) -> str:
    return f"{file}:{first_items_text(list(map(str, lines)), _MAX_SHOWN_LINES)}"
