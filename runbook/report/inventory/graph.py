"""`inventory graph`: groups and their nodes as a tree, as `ansible-inventory --graph` draws it; ranges folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from runbook.model.fold import fold
from runbook.model.inventory import Inventory, Node
from runbook.model.visible import visible
from runbook.report.inventory.listing import gpus, headline


def text(inventory: Inventory) -> str:
    by_name = {node.name: node for node in inventory.nodes}
    lines = [headline(inventory), "", "@all:"]
    for group, members in inventory.groups.items():
        lines.append(f"  |--@{group}:{_count(len(members))}")
        lines += [f"  |  |--{line}" for line in _leaves(by_name[name] for name in members)]
    alone = [node for node in inventory.nodes if not node.groups]
    if alone and inventory.groups:
        lines.append(f"  |--@ungrouped:{_count(len(alone))}")
        lines += [f"  |  |--{line}" for line in _leaves(alone)]
    else:
        lines += [f"  |--{line}" for line in _leaves(alone)]
    return "\n".join(map(visible, lines)) + "\n"


def _leaves(nodes: Iterable[Node]) -> Iterator[str]:
    """Neighbours with the same GPUs in one line: `gn[01-16]  8 GPUs each`."""
    for gpu, group in groupby(nodes, key=gpus):
        same = list(group)
        what = (
            f"{gpu} GPU" + ("" if gpu == "1" else "s") if gpu[0].isdigit() else f"GPUs {gpu}" if gpu[0] == "[" else gpu
        )
        yield f"{fold(node.name for node in same)}  {what}" + (" each" if len(same) > 1 else "")


def _count(number: int) -> str:
    return f"  {number:,} node" + ("" if number == 1 else "s")
