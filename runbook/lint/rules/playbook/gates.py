"""Bandwidth gates that cannot be met, and checks of several ranks that are given one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runbook.checks.allreduce import AllReduce
from runbook.checks.base import Check
from runbook.launch.ranks import hca_expression
from runbook.lint.staging import Staged
from runbook.model.errors import Problem
from runbook.model.inventory import Inventory, Node
from runbook.model.units import bytes_text, significant

FASTEST_S = 5e-6
"""No AllReduce over a network is quicker, however small."""


def one_rank(staged: Staged) -> Iterator[Problem]:
    work = staged.planned.work if staged.planned else None
    if staged.cluster is None or not isinstance(work, Check) or not work.needs_ranks or staged.cluster.world_size > 1:
        return
    node = staged.cluster.nodes[0].name
    help = "select more nodes, or give the node more `gpus` (`processes` on a CPU)"
    if isinstance(work, AllReduce) and _number(work):
        message = f"this gate can never be met: {node} alone is one rank, and its bus bandwidth is zero by definition"
        yield Problem("playbook.gate-one-rank", message, staged.span("with", "min_busbw_gbytes"), help)
    else:
        message = f"`{work.id}` needs several ranks to prove anything, and here it has one, on {node}"
        yield Problem("playbook.one-rank", message, staged.span("check"), help)


def gate_too_high(staged: Staged) -> Iterator[Problem]:
    gate, cluster = _gate(staged), staged.cluster
    if gate is None or cluster is None or cluster.infiniband is None or len(cluster.nodes) < 2:
        return
    rate = cluster.infiniband.min_rate_gbps
    if rate is None or cluster.one_machine:
        return
    adapters, node = min(((_adapters(cluster, node), node) for node in cluster.nodes), key=lambda pair: pair[0])
    limit = adapters * rate / 8
    if gate <= limit:
        return
    many = "one adapter" if adapters == 1 else f"{adapters} adapters"
    message = (
        f"a gate of {significant(gate)} GB/s is above what {node.name} can carry: "
        f"{many} of {significant(rate)} Gbit/s, that is {significant(limit)} GB/s"
    )
    help = "lower the gate, or raise `min_rate_gbps` to what the links really have; 8 Gbit/s are 1 GB/s"
    yield Problem("playbook.gate-too-high", message, staged.span("with", "min_busbw_gbytes"), help)


def gate_too_small(staged: Staged) -> Iterator[Problem]:
    gate, work = _gate(staged), staged.planned.work if staged.planned else None
    if gate is None or not isinstance(work, AllReduce) or staged.cluster is None or staged.cluster.world_size < 2:
        return
    ranks = staged.cluster.world_size
    seconds = 2 * (ranks - 1) / ranks * work.max_bytes / (gate * 1e9)
    if seconds >= FASTEST_S:
        return
    message = (
        f"a gate of {significant(gate)} GB/s at {bytes_text(work.max_bytes)} wants an AllReduce within "
        f"{significant(seconds * 1e6)} µs, and latency alone is longer"
    )
    help = "the gate looks at the largest size: raise `max_bytes`, for example to 1G"
    yield Problem("playbook.gate-too-small", message, staged.span("with", "min_busbw_gbytes"), help)


def _gate(staged: Staged) -> float | None:
    work = staged.planned.work if staged.planned else None
    return _number(work) if isinstance(work, AllReduce) else None


def _number(work: AllReduce) -> float | None:
    """The gate where it is a number above zero; `auto` is judged by the run, which sees the hardware."""
    return work.min_busbw_gbytes or None if isinstance(work.min_busbw_gbytes, float) else None


def _adapters(cluster: Inventory, node: Node) -> int:
    """As many as the expression names by their numbers; where it does not, one a GPU, which is what is built."""
    expression = hca_expression(cluster, node) or ""
    names = [name for name in expression.removeprefix("=").split(",") if name]
    if names and not expression.startswith("^") and all(re.search(r"[0-9](:[0-9]+)?$", name) for name in names):
        exact = [name.partition(":")[0] for name in names]
        if expression.startswith("=") or all(re.search(r"_[0-9]+$", name) for name in exact):
            return len(set(names))
    return max(1, len(node.gpus))
