"""Rules about GPUs and processes: no device twice, counts that a machine can have, and the backend that they allow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from runbook.files.address import normal_spelling
from runbook.files.inventory import is_backend_given
from runbook.lint.rule_inputs import (
    InventoryFile,
    are_all_trusted,
    each_of_nodes,
    has_or_have,
    is_or_are,
    is_soundly_given,
    is_value_meant,
    named_nodes,
    node_span,
    nodes_by_place,
    trusted_nodes,
)
from runbook.model.errors import Problem
from runbook.model.inventory import Node

_MAX_GPUS = 16  # in one machine: an HGX-2; ours and most have 8
_MAX_PROCESSES = 512  # twice the cores of a large machine
_BACKEND_KEY = ("rendezvous", "backend")


def shared_gpu(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes that are one machine and share a GPU. Nodes of a gloo job may share a GPU on purpose."""
    if is_soundly_given(file, *_BACKEND_KEY) and file.inventory.rendezvous.backend == "gloo":
        return
    pairs: dict[str, tuple[Node, int, str]] = {}
    for where, nodes in _shared_machines(trusted_nodes(file, "address", "connection", "gpus", "shell")):
        owners: dict[int, Node] = {}
        for node in nodes:
            for gpu in node.gpus:
                owner = owners.setdefault(gpu, node)
                if owner is not node:
                    pairs.setdefault(node.name, (owner, gpu, where))
    second = [node for node in file.inventory.nodes if node.name in pairs]
    for span, some in nodes_by_place(file, second, "gpus"):
        owner, gpu, where = pairs[some[0].name]
        message = f"{named_nodes([owner, *some])} are one machine ({where}), and share its GPU {gpu}"
        help = "give each node devices of its own, for example `gpus: [0, 1]` and `gpus: [2, 3]`"
        if owner.ssh.port != some[0].ssh.port and where == normal_spelling(owner.address):
            port = f", port: {some[0].ssh.port}" if some[0].ssh.port else ""
            help += (
                f"\ntwo machines behind one address: log in by `ssh: {{host: {where}{port}}}`, and let `address:` be "
                "where the other nodes reach it"
            )
        yield Problem("inventory.shared-gpu", message, span, help)


def _shared_machines(nodes: Sequence[Node]) -> Iterator[tuple[str, list[Node]]]:
    """Yields each machine that is several nodes, with these: nodes at one address, and all with `connection: local`."""
    first: dict[str, Node] = {}
    several: dict[str, list[Node]] = {}
    for node in nodes:
        local = node.connection == "local"
        where = "connection: local" if local else normal_spelling(node.address)
        one = first.setdefault(where, node)
        if one is not node:
            several.setdefault(where, [one]).append(node)
    yield from several.items()


def gpus_per_node(file: InventoryFile) -> Iterator[Problem]:
    many = [node for node in trusted_nodes(file, "gpus") if len(node.gpus) > _MAX_GPUS]
    for span, nodes in nodes_by_place(file, many, "gpus"):
        message = f"{len(nodes[0].gpus)} GPUs on {each_of_nodes(nodes)}: no machine has that many"
        yield Problem("inventory.gpus-per-node", message, span, "`gpus` counts those of one node, not of the cluster")


def gpus_from_one(file: InventoryFile) -> Iterator[Problem]:
    """Reports lists such as `[8]` and `[1, 2, …, 8]`: a count, or devices counted from 1."""
    odd = [
        node for node in trusted_nodes(file, "gpus") if node.gpus and 0 not in node.gpus and max(node.gpus) in (8, 16)
    ]
    for span, nodes in nodes_by_place(file, odd, "gpus"):
        highest = max(nodes[0].gpus)
        message = (
            f"the list names GPU {highest}, and devices are counted from 0: the last of {highest} is {highest - 1}"
        )
        count = len(nodes[0].gpus)
        help = (
            f"for {highest} GPUs write `gpus: {highest}`"
            if count in (1, highest)
            else f"counted from 0 these are {[gpu - 1 for gpu in nodes[0].gpus]}"
        )
        yield Problem("inventory.gpus-from-one", message, span, help)


def some_without_gpus(file: InventoryFile) -> Iterator[Problem]:
    """Reports nodes without `gpus` among nodes with them: if they were forgotten, the backend silently becomes gloo."""
    if is_backend_given(file.origins) or not is_value_meant(file, "rendezvous", "backend"):
        return
    if not are_all_trusted(file, "gpus", "shell"):
        return
    without = [node for node in file.inventory.nodes if not node.gpus]
    if not without or len(without) == len(file.inventory.nodes) or any(node.windows for node in file.inventory.nodes):
        return
    message = (
        f"{named_nodes(without)} {has_or_have(without)} no GPUs and the others have: so "
        "the job's backend is gloo, not nccl"
    )
    help = "give these nodes `gpus`; or say so with `rendezvous: {backend: gloo}`"
    yield Problem("inventory.some-without-gpus", message, node_span(file, without[0]), help)


def nccl_without_gpus(file: InventoryFile) -> Iterator[Problem]:
    if not _names_nccl_backend(file):
        return
    without = [node for node in trusted_nodes(file, "gpus") if not node.gpus and not node.windows]
    if without:
        message = f"nccl runs on GPUs, and {named_nodes(without)} {has_or_have(without)} none"
        help = "give every node its `gpus`, or write `backend: gloo`"
        yield Problem("inventory.nccl-without-gpus", message, file.document.span(*_BACKEND_KEY), help)


def nccl_on_windows(file: InventoryFile) -> Iterator[Problem]:
    if not _names_nccl_backend(file):
        return
    windows = [node for node in trusted_nodes(file, "shell") if node.windows]
    if windows:
        message = f"torch for Windows has no nccl, and {named_nodes(windows)} {is_or_are(windows)} Windows"
        help = "write `backend: gloo`, or leave it out"
        yield Problem("inventory.nccl-on-windows", message, file.document.span(*_BACKEND_KEY), help)


def gloo_on_gpus(file: InventoryFile) -> Iterator[Problem]:
    """Reports `backend: gloo` where the default is nccl, but not on one machine, where people try things out so."""
    inventory = file.inventory
    if not is_soundly_given(file, *_BACKEND_KEY) or inventory.rendezvous.backend != "gloo" or len(inventory.nodes) == 1:
        return
    if not are_all_trusted(file, "gpus", "shell", "connection") or inventory.one_machine:
        return
    if all(node.gpus and not node.windows for node in inventory.nodes):
        message = "every node has GPUs, and gloo passes their data through main memory and TCP"
        help = "write `backend: nccl`, or leave it out"
        yield Problem("inventory.gloo-on-gpus", message, file.document.span(*_BACKEND_KEY), help)


def unused_processes(file: InventoryFile) -> Iterator[Problem]:
    """Reports `processes` at a place that reaches only nodes with GPUs; a default that reaches CPU nodes too is of
    use."""
    nodes = trusted_nodes(file, "gpus", "processes")
    overruled = [node for node in nodes if node.gpus and node.processes != 1]
    if not overruled:
        return
    used = {span for span, _ in nodes_by_place(file, [node for node in nodes if not node.gpus], "processes")}
    for span, some in nodes_by_place(file, overruled, "processes"):
        if span not in used:
            message = f"`processes` counts CPU ranks, and {named_nodes(some)} {has_or_have(some)} GPUs: one rank each"
            yield Problem("inventory.unused-processes", message, span, "remove it, or the `gpus`")


def many_processes(file: InventoryFile) -> Iterator[Problem]:
    many = [node for node in trusted_nodes(file, "processes") if not node.gpus and node.processes > _MAX_PROCESSES]
    for span, nodes in nodes_by_place(file, many, "processes"):
        message = f"{nodes[0].processes} ranks on {each_of_nodes(nodes)}: no machine has so many cores"
        yield Problem(
            "inventory.many-processes", message, span, "`processes` counts the ranks of one node, not of the job"
        )


def _names_nccl_backend(file: InventoryFile) -> bool:
    return is_soundly_given(file, *_BACKEND_KEY) and file.inventory.rendezvous.backend == "nccl"


INVENTORY_RULES = (
    gloo_on_gpus,
    gpus_from_one,
    gpus_per_node,
    many_processes,
    nccl_on_windows,
    nccl_without_gpus,
    shared_gpu,
    some_without_gpus,
    unused_processes,
)
