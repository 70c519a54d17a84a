"""Nodes that no playbook of the lint selects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runbook.lint.subject import InventoryFile, PlaybookFile
from runbook.load.patterns import select
from runbook.load.ranges import expand
from runbook.model.errors import FilesWrong, Problem


def node_in_no_play(inventories: Sequence[InventoryFile], playbooks: Sequence[PlaybookFile]) -> Iterator[Problem]:
    """Only of inventories that some playbook uses; a playbook that names none may be meant for any of them."""
    for inventory in inventories:
        using = [playbook for playbook in playbooks if playbook.inventory is inventory]
        if not using or not inventory.names_known or not all(playbook.sound("nodes") for playbook in playbooks):
            continue
        anywhere = [playbook for playbook in playbooks if playbook.playbook.inventory is None]
        played = set().union(*(_selected(playbook, inventory) for playbook in (*using, *anywhere)))
        names = ", ".join(Path(playbook.document.path).name for playbook in using)
        data: Any = inventory.document.data
        for key in data["nodes"]:
            missing = [name for name in expand(key) if name not in played]
            if missing:
                who = (
                    f"`{missing[0]}`"
                    if len(missing) == 1
                    else f"`{missing[0]}` and {len(missing) - 1:,} more of `{key}`"
                )
                message = f"no playbook of this lint selects {who}"
                help = f"widen the `nodes:` of {names}, or take the node out"
                yield Problem("inventory.node-in-no-play", message, inventory.document.key_span("nodes", key), help)


def _selected(playbook: PlaybookFile, inventory: InventoryFile) -> set[str]:
    try:
        return {node.name for node in select(playbook.playbook.nodes, inventory.inventory)}
    except FilesWrong:
        return set()
