"""Rules about several files: the inventory that a playbook names, nodes in no playbook, one rendezvous for two jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runbook.files.address import is_loopback, normal_spelling
from runbook.files.node_sets import expand, select_nodes
from runbook.files.shipped_files import YAML_SUFFIXES
from runbook.files.suggestions import nearest_word
from runbook.lint.rule_inputs import (
    InventoryFile,
    PlaybookFile,
    ReadFile,
    ReadFiles,
    is_value_meant,
    named_inventory_path,
    trusted_nodes,
)
from runbook.model.errors import FilesWrong, Problem
from runbook.model.safe_files import is_file, is_folder, path_lookup_error
from runbook.model.units import count_text


def named_inventory(playbooks: Sequence[ReadFile], linted: Sequence[ReadFile], reading: ReadFiles) -> Iterator[Problem]:
    """Reports the inventory that a playbook names if it cannot be used. Mistakes in an inventory that is linted itself
    are reported there."""
    for playbook in playbooks:
        path = named_inventory_path(playbook.document)
        span = playbook.document.span("inventory")
        if path is None:
            continue
        if not is_file(path):
            unseen = path_lookup_error(path)
            what = "a folder" if is_folder(path) else f"not to be seen: {unseen}" if unseen else "not there"
            help = _nearest_file_help(path) or "the path is relative to the playbook's own folder"
            yield Problem("playbook.missing-inventory", f"the inventory {path} is {what}", span, help)
            continue
        if outside := reading.leads_out(playbook.document, path):
            message = f"the inventory {path} is not read: it is a link that leads out of what is linted, to {outside}"
            yield Problem("playbook.broken-inventory", message, span, f"name it: runbook lint {path}")
            continue
        inventory = reading.read(path, kind="inventory")
        if inventory.kind == "playbook":
            yield Problem("playbook.missing-inventory", f"{path} is a playbook, not an inventory", span)
        elif inventory.problems and inventory not in linted:
            message = f"the inventory {path} cannot be used: {count_text(len(inventory.problems), 'mistake')} in it"
            yield Problem("playbook.broken-inventory", message, span, f"see them with `runbook lint {path}`")


def _nearest_file_help(path: str) -> str | None:
    folder = Path(path).parent
    try:
        names = sorted(file.name for file in folder.iterdir() if file.suffix in YAML_SUFFIXES)
    except OSError:
        return None
    near = nearest_word(Path(path).name, names)
    return None if near is None else f"did you mean `{near}`, in the same folder?"


# Nodes that no playbook of the lint selects.


def node_in_no_play(inventories: Sequence[InventoryFile], playbooks: Sequence[PlaybookFile]) -> Iterator[Problem]:
    """Reports nodes that no playbook selects, in inventories that some playbook names. A playbook that names no
    inventory may be meant for any of them."""
    for inventory in inventories:
        using = [playbook for playbook in playbooks if playbook.inventory is inventory]
        if not using or not inventory.names_known or not all(playbook.sound("nodes") for playbook in playbooks):
            continue
        anywhere = [playbook for playbook in playbooks if playbook.playbook.inventory is None]
        played = set().union(*(_selected_node_names(playbook, inventory) for playbook in (*using, *anywhere)))
        names = ", ".join(Path(playbook.document.path).name for playbook in using)
        data: Any = inventory.document.data
        for key in data["nodes"]:
            missing = [name for name in expand(key) if name not in played]
            if missing:
                more = f" and {len(missing) - 1:,} more of `{key}`" if len(missing) > 1 else ""
                message = f"no playbook of this lint selects `{missing[0]}`{more}"
                help = f"widen the `nodes:` of {names}, or take the node out"
                yield Problem("inventory.node-in-no-play", message, inventory.document.key_span("nodes", key), help)


def _selected_node_names(playbook: PlaybookFile, inventory: InventoryFile) -> set[str]:
    try:
        return {node.name for node in select_nodes(playbook.playbook.nodes, inventory.inventory)}
    except FilesWrong:
        return set()


# Two inventories of one lint that name the same rendezvous.


def rendezvous_taken(inventories: Sequence[InventoryFile], _: Sequence[PlaybookFile]) -> Iterator[Problem]:
    """Reports inventories whose jobs meet at one address and port: these cannot run at once.

    Loopback addresses are left out: each machine has its own, and examples all use them.
    """
    first: dict[tuple[str, int], InventoryFile] = {}
    for file in inventories:
        rendezvous = file.inventory.rendezvous
        if is_loopback(rendezvous.address) or not _is_rendezvous_certain(file):
            continue
        other = first.setdefault((normal_spelling(rendezvous.address), rendezvous.port), file)
        if other is file:
            continue
        where = f"{rendezvous.address}, port {rendezvous.port}"
        message = f"the job of {other.document.path} meets at {where} as well: the two cannot run at once"
        help = "give one of them another `rendezvous: {port: …}`"
        span = file.document.span("rendezvous", "port")
        if ("rendezvous", "port") not in file.document.spans:
            span = file.document.key_span("rendezvous") or file.document.span()
        yield Problem("inventory.rendezvous-taken", message, span, help)


def _is_rendezvous_certain(file: InventoryFile) -> bool:
    """Whether address and port of the rendezvous are what the author meant: nothing wrong can have touched them."""
    master = file.inventory.nodes[0]
    known = all(is_value_meant(file, "rendezvous", name) for name in ("master", "address", "port"))
    return known and master in trusted_nodes(file, "address")[:1]


TOGETHER_RULES = (node_in_no_play, rendezvous_taken)
