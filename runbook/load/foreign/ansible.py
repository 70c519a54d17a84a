"""Ansible's inventories, INI, YAML or JSON: each host with what its groups and itself give it, in our words."""

from __future__ import annotations

from runbook.load.address import address_fault
from runbook.load.foreign.ansible_ini import read_ini
from runbook.load.foreign.ansible_tree import TOP, GivenVariable, Tree
from runbook.load.foreign.ansible_vars import VariableMeanings
from runbook.load.foreign.ansible_yaml import read_yaml
from runbook.load.foreign.found import ANSIBLE, LOGIN, ForeignHost, ForeignInventory, Remark
from runbook.load.write import Settings


def read_ansible(text: str, file: str, *, yaml: bool) -> ForeignInventory:
    """Raises FilesWrong for what Ansible would refuse too, and for addresses and ports that cannot be."""
    tree = read_yaml(text, file) if yaml else read_ini(text, file)
    if not tree.hosts:
        raise tree.lines.wrong(1, "", "empty", "there is no host in this inventory")
    order = tree.weakest_first()
    groups_of: dict[str, list[str]] = {name: [] for name in tree.hosts}
    members = {name: tree.members(name) for name in order if name not in TOP}
    for name in order:
        for host in members.get(name, ()):
            groups_of[host].append(name)
    meaning = VariableMeanings(tree.lines)
    hosts = tuple(
        _host(tree, name, meaning.settings([*_of_groups(tree, groups_of[name]), *entry.given]))
        for name, entry in tree.hosts.items()
    )
    group_settings: dict[str, Settings] = {name: meaning.settings(tree.groups[name].given) for name in members}
    remarks = list(meaning.remarks)
    for name in members:
        if not members[name]:
            held = ", ".join(dict.fromkeys(given.key for given in tree.groups[name].given))
            remarks.append(
                Remark(f"the group {name} has no hosts" + (f"; it set {held}" if held else ""), tree.groups[name].line)
            )
    return ForeignInventory(
        ANSIBLE,
        file,
        hosts,
        {
            name: tuple(host for host in tree.hosts if host in members[name])
            for name in tree.groups
            if members.get(name)
        },
        group_settings,
        tuple(remarks),
    )


def _of_groups(tree: Tree, groups: list[str]) -> list[GivenVariable]:
    """What `all` and then a host's own groups give; a host in no group has those of `ungrouped`."""
    return [given for name in ("all", *(groups or ["ungrouped"])) for given in tree.groups[name].given]


def _host(tree: Tree, name: str, settings: Settings) -> ForeignHost:
    """A host without `ansible_host` is dialled by its name, which must then be one that can be dialled."""
    line = tree.hosts[name].line
    if ("address",) not in settings:
        user, at, address = name.rpartition("@")
        fault = address_fault(address)
        if fault is not None or (at and not LOGIN.fullmatch(user)):
            help = "a host is a name or an address; any other name needs an ansible_host"
            message = fault[0] if fault else f"`{user}` is no login name"
            raise tree.lines.wrong(line, name, "bad-host", message, help)
        if at:
            settings = {("ssh", "user"): user, **settings, ("address",): address}
    return ForeignHost(name, tree.lines.span(line, name), settings)
