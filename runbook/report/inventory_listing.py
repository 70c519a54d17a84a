"""`inventory list` and `inventory graph`: a line a node, or one for all neighbours that are alike; groups as a tree; or
all as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby

from runbook.launch.ranks import NodeRanks, dialled_address, endpoint, layout
from runbook.model.inventory import Inventory, Node
from runbook.model.node_ranges import fold
from runbook.model.safe_text import table, visible
from runbook.model.units import counted, span_of
from runbook.report.run_json import plain

FOLDED_FROM = 41  # nodes; as many lines still fit on a screen
WIDEST = 40  # columns of folded addresses
HEADINGS = ("ranks", "node", "address", "gpus", "shell", "login", "groups")


def list_text(inventory: Inventory, ranked: Inventory, nodes: Sequence[Node]) -> str:
    """`ranked`: the same without the spares of its launch."""
    chosen = _places(ranked, nodes)
    groups = [[node_ranks] for node_ranks in chosen] if len(chosen) < FOLDED_FROM else list(_alike(chosen))
    rows = [_row(same) for same in groups]
    used = [column for column in range(len(HEADINGS)) if column < 4 or any(row[column] for row in rows)]
    lines = table([row[column] for column in used] for row in (HEADINGS, *rows))
    return f"{headline(inventory, ranked)}\n\n" + "\n".join(lines) + "\n" + _about(inventory, nodes, rows)


def _places(ranked: Inventory, nodes: Sequence[Node]) -> list[NodeRanks]:
    """A spare has no ranks."""
    by_node = layout(ranked).by_node
    return [by_node.get(node.name, NodeRanks(node, 0, ())) for node in nodes]


def headline(inventory: Inventory, ranked: Inventory) -> str:
    gpus = sum(len(node.gpus) for node in ranked.nodes)
    where = endpoint(dialled_address(ranked.rendezvous, len(ranked.nodes)), ranked.rendezvous.port)
    on = f" on {counted(gpus, 'GPU')}" if gpus == ranked.world_size else f", {counted(gpus, 'GPU')}" if gpus else ""
    spares = len(inventory.nodes) - len(ranked.nodes)
    of_them = f" ({counted(spares, 'spare')})" if spares else ""
    return visible(
        f"{inventory.name} ({inventory.source}): {counted(len(inventory.nodes), 'node')}{of_them}, "
        f"{counted(ranked.world_size, 'rank')}{on}; {ranked.rendezvous.backend}, ranks dial {where}"
    )


def gpus(node: Node) -> str:
    """`8`, `[0,2]`, or `cpu` with how many ranks there are, if it is not one."""
    if not node.gpus:
        return "cpu" if node.processes == 1 else f"cpu x {node.processes}"
    if node.gpus == tuple(range(len(node.gpus))):
        return str(len(node.gpus))
    return "[" + ", ".join(map(str, node.gpus)) + "]"


def login(node: Node, host: str | None = None) -> str:
    """How to log in beyond the address: user, other host, port, jump host; what is left out is ssh's own choice."""
    into = f", {entered}" if (entered := _container(node)) else ""
    if node.connection == "local":
        return f"this machine{into}"
    if node.connection == "agent":
        return f"its agent{into}"
    if node.connection == "slurm":
        return (f"a step of job {node.slurm.job}" if node.slurm.job else "a step of the job") + into
    if node.connection == "kubernetes":
        return f"{_pod(node)}{into}"
    ssh = node.ssh
    host = host or ssh.host
    at = f"@{host}" if host and host != node.address else ""
    who = f"{ssh.user or ''}{at}" + (f":{ssh.port}" if ssh.port and at else f" port {ssh.port}" if ssh.port else "")
    return (who + (f" via {ssh.jump}" if ssh.jump else "") + into).strip(" ,")


def _pod(node: Node) -> str:
    """`namespace/pod` and the container, as far as the inventory names them."""
    chosen = node.kubernetes
    pod = node.pod or f"the one of {chosen.selector}"
    return f"pod {chosen.namespace + '/' if chosen.namespace else ''}{pod}" + (
        f" {chosen.container}" if chosen.container else ""
    )


def _container(node: Node) -> str:
    if node.container is not None:
        return f"{node.container.runtime} {node.container.name}"
    return node.inside[0] if node.inside else ""


def list_json(inventory: Inventory, ranked: Inventory, nodes: Sequence[Node]) -> str:
    """One document with everything resolved; secrets are `***`. A spare has null for ranks."""
    document = {
        "version": 1,
        "name": inventory.name,
        "source": inventory.source,
        "world_size": ranked.world_size,
        "rendezvous": {**asdict(ranked.rendezvous), "dialled": dialled_address(ranked.rendezvous, len(ranked.nodes))},
        "network": asdict(inventory.network),
        "infiniband": inventory.infiniband and asdict(inventory.infiniband),
        "env": inventory.env,
        "nodes": list(map(_as_json, _places(ranked, nodes))),
        "groups": inventory.groups,
    }
    return json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n"


def _as_json(node_ranks: NodeRanks) -> dict[str, object]:
    node = node_ranks.node
    return {
        **{field.name: getattr(node, field.name) for field in fields(node) if field.name != "slurm"},
        "node_rank": node_ranks.node_rank if node_ranks.ranks else None,
        "ranks": [node_ranks.ranks[0].rank, node_ranks.ranks[-1].rank] if node_ranks.ranks else None,
        "ssh": {**asdict(node.ssh), "host": node.ssh.host or node.address},
        "kubernetes": asdict(node.kubernetes) if node.connection == "kubernetes" else None,
        "container": node.container and asdict(node.container),
        "inside": node.inside or None,
    }


def _alike(by_node: Sequence[NodeRanks]) -> Iterator[list[NodeRanks]]:
    """Neighbours in rank order that differ in name, address and ssh host only."""

    def kind(numbered: tuple[int, NodeRanks]) -> object:
        place, node_ranks = numbered
        node = node_ranks.node
        ssh = (node.ssh.user, node.ssh.port, node.ssh.jump, node.ssh.host is None)
        # Where a pattern left nodes out, ranks do not go on from one to the next.
        entry = (node.container, node.inside, replace(node.kubernetes, pod=None))
        in_order = node_ranks.node_rank - place if node_ranks.ranks else "spare"
        return gpus(node), node.shell, node.connection, entry, node.groups, ssh, in_order

    for _, group in groupby(enumerate(by_node), key=kind):
        yield [node_ranks for _, node_ranks in group]


def _row(same: Sequence[NodeRanks]) -> tuple[str, ...]:
    nodes = [node_ranks.node for node_ranks in same]
    first = nodes[0]
    hosts = [node.ssh.host for node in nodes if node.ssh.host]
    return (
        span_of(same[0].ranks[0].rank, same[-1].ranks[-1].rank) if same[0].ranks else "spare",
        fold(node.name for node in nodes),
        _short([node.address for node in nodes]),
        gpus(first),
        first.shell,
        login(first, _short(hosts) if len(nodes) > 1 and hosts else None),
        ",".join(first.groups),
    )


def _short(addresses: Sequence[str]) -> str:
    folded = fold(addresses)
    return folded if len(addresses) == 1 or len(folded) <= WIDEST else f"{addresses[0]} … {addresses[-1]}"


def _about(inventory: Inventory, nodes: Sequence[Node], rows: Sequence[object]) -> str:
    notes = []
    if len(nodes) < len(inventory.nodes):
        notes.append(f"{counted(len(nodes), 'node')} of {len(inventory.nodes)}")
    if len(rows) < len(nodes):
        notes.append(
            "nodes that are alike share a line, and `gpus` is what each of them has: -l shows some, -o json each"
        )
    return "".join(f"\n{note}\n" for note in notes)


def graph_text(inventory: Inventory, ranked: Inventory) -> str:
    by_name = {node.name: node for node in inventory.nodes}
    lines = [headline(inventory, ranked), "", "@all:"]
    for group, members in inventory.groups.items():
        lines.append(f"  |--@{group}:  {counted(len(members), 'node')}")
        lines += [f"  |  |--{line}" for line in _leaves(by_name[name] for name in members)]
    alone = [node for node in inventory.nodes if not node.groups]
    if alone and inventory.groups:
        lines.append(f"  |--@ungrouped:  {counted(len(alone), 'node')}")
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
