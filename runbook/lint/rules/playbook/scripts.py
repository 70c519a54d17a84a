"""What the scripts of a stage cannot do or carry, told by writing them as `render` does."""

from __future__ import annotations

from collections.abc import Iterator

from runbook.engine.plan import Plan
from runbook.engine.scripts import node_files
from runbook.launch.ranks import narrow
from runbook.lint.staging import Staged
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory, Node

MOST_NODES = 300
"""That many different ones are written for: who mends these has mended all."""


def scripts(staged: Staged) -> Iterator[Problem]:
    planned, inventory = staged.planned, staged.file.inventory
    if staged.cluster is None or planned is None or inventory is None or not planned.starts_ranks:
        return
    if not staged.sound("launch") or not inventory.sound("env", "activate", "python", "workdir"):
        return
    plan = Plan(staged.file.playbook, _one_of_each(staged.cluster), (planned,))
    try:
        node_files(plan, inventory.origins)
    except FilesWrong as wrong:
        yield from wrong.problems


def _one_of_each(cluster: Inventory) -> Inventory:
    """One node of all that would get the same script but for names, addresses and numbers, which any shell carries."""
    kinds: dict[object, Node] = {}
    for node in cluster.nodes:
        settings = (node.shell, node.python, node.activate, node.workdir, repr(node.env), repr(node.vars))
        kinds.setdefault(settings, node)
    return narrow(cluster, list(kinds.values())[:MOST_NODES])
